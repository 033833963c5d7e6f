"""The contract's small kernels in four stacks: proof that it can be kept, seed of the backends.

`python -m stacks` runs each kernel in Triton, WGSL, MLX and Numba, on the devices present, against
the bits of `cortiq.numerics`. Not part of any distribution.
"""
