"""The CPU backend of cortiq: native kernels with the bits of the reference."""

from __future__ import annotations
