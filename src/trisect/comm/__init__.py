"""Mesh, transport, shared memory, wire formats and the byte ledger. The only package that calls torch.distributed."""
