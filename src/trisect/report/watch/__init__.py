"""A run that another process makes, as it goes on: in the terminal, or as a page on this machine alone."""
