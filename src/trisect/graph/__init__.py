"""`Adjacency` (CSR with its transpose), `Graph`, `Timeline`, normalisation. Knows no ranks and no torch.nn."""
