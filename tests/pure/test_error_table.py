"""The table of error bounds in docs/NUMERICS.md states the constants of the code."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "NUMERICS.md"
ROW = re.compile(r"^\| `(\w+)\.(\w+)` \| ([^|]+) \|", re.MULTILINE)
MODULES = ("scalar", "norms", "rope", "route", "sampling")
SUPERSCRIPTS = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")


def number(text):
    """'3·2⁻²⁴' as a float."""
    factors = [re.sub(r"^2([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)$", r"2**\1", part) for part in text.split("·")]
    product = 1.0
    for factor in factors:
        base, _, exponent = factor.partition("**")
        product *= float(base) ** int(exponent.translate(SUPERSCRIPTS) or 1)
    return product


def test_every_bound_is_in_the_table_with_its_value():
    stated = {(m, name): number(value) for m, name, value in ROW.findall(PAGE.read_text("utf-8"))}
    actual = {}
    for module in MODULES:
        members = vars(importlib.import_module(f"cortiq.numerics.{module}"))
        names = [n for n in members if n.endswith(("_MAX_ULP", "_MAX_ERROR"))]
        actual |= {(module, name): members[name] for name in names}
    ours = {key: value for key, value in stated.items() if key[0] in MODULES}
    assert ours == actual
