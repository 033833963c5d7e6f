"""Receipts: records of a generation that anybody can verify on other hardware.

`record` is the receipt itself and `reader` its strict reader, `provenance` what is stated of the
machine, `signing` the Ed25519 signature, `replay` the recomputation and `verify` the verdict. The
format is described in docs/receipts.md.
"""

from __future__ import annotations
