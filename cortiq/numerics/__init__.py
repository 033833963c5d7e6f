"""The numerics contract in NumPy: the executable definition of every bit cortiq computes."""
