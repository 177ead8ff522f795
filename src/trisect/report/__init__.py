"""A run directory → one HTML page. Knows nothing else."""
