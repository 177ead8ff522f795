"""A model of PyTorch Geometric as it stands, run on some rows of a graph: what its operations want of other rows is
asked of a view.

torch_geometric itself is never imported here: a convolution is known by its class's name, and most of what it does by
the operations of torch that it calls.
"""
