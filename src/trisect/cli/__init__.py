"""The command line: arguments and error messages."""
