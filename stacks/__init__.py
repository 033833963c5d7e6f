"""The contract's small kernels in four stacks: proof that it can be kept, seed of the backends.

`python -m stacks` runs each kernel in Triton, WGSL, MLX and Numba, on the devices present, against
the bits of `cortiq.numerics`. Scalar functions are those of the backends beside this folder, which
need not be installed. Not part of any distribution.
"""

import sys
from pathlib import Path

BACKENDS = Path(__file__).parents[1] / "backends"
sys.path += [str(BACKENDS / name) for name in ("triton", "wgpu", "mlx")]
