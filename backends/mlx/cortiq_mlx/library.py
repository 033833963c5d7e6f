"""The import of MLX, in one place: the environment it reads is set here before.

MLX multiplies float32 matrices in TF32 on CUDA unless this variable says otherwise when it is first
used; a shorter mantissa would not hold the integers that `exact` multiplies.
"""

from __future__ import annotations

import os

os.environ["MLX_ENABLE_TF32"] = "0"

import mlx.core as mx

DEVICES = {"cpu": mx.cpu, "gpu": mx.gpu}
"""MLX's devices by the names that select them."""


def there(name: str) -> bool:
    """Check whether this machine's MLX has the device."""
    return name == "cpu" or (name == "gpu" and bool(mx.is_available(mx.gpu)))


def version() -> str:
    """Return MLX's version."""
    return str(vars(mx)["__version__"])


def description(name: str) -> str:
    """Describe the device: MLX's version and its kind."""
    kind = "CPU" if name == "cpu" else "Metal" if mx.metal.is_available() else "CUDA"
    return f"MLX {version()}, {kind}"
