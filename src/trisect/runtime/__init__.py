"""The executor of a schedule, exchanges over torch.distributed, the byte ledger. Knows no files."""
