"""Cost model, cluster descriptions, search over layouts. Knows no tensors."""
