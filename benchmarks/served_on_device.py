"""`cortiq` with synthetic w8 weights made on the GPU, for `served.py --on-device`.

What the host takes a minute for, the device does in seconds, with the same bits.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "backends/triton"))
sys.path.insert(0, str(Path(__file__).parent))

from gpu_models import made_on_the_device

from cortiq.backend import compiling
from cortiq.cli.main import main
from cortiq_triton import kernels

if __name__ == "__main__":
    kernels.pack = made_on_the_device
    compiling.check_finite = lambda weight, name: None  # which reads them all on the host
    main()
