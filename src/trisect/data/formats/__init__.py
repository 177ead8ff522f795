"""Files and objects of others: npz, graph directories, PyG and the like."""
