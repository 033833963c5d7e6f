"""The lint of PTX leaves out blocks marked as exact, and nothing beside them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

PATH = Path(__file__).parents[2] / "tools/ptx.py"
MARKED = """
{
  // exact
  .reg .f32 y, rest;
  rcp.approx.ftz.f32 y, %r1;
  fma.rn.f32 %r2, y, rest, y;
}
add.rn.f32 %r3, %r2, %r2;
"""


def breaches(ptx: str) -> list[str]:
    spec = importlib.util.spec_from_file_location("ptx_lint", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.breaches(ptx)


def test_only_marked_blocks_may_approximate():
    assert breaches(MARKED) == []
    assert len(breaches(MARKED.replace("// exact", "// nearly"))) == 3
    (line,) = breaches(MARKED + "fma.rn.f32 %r4, %r3, %r3, %r3;\n}")
    assert line.startswith("a fused multiply-add: 1 times")
    assert breaches("// exact\nfma.rn.f32 %r4, %r3, %r3, %r3;")
