"""The native kernels: plain C without Python or torch headers, called through ctypes on raw pointers."""
