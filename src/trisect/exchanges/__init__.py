"""What crosses between two cells, one class a file: which layers it fits, its actions, its bytes, how rows cross."""
