"""docs/ir.md lists the whole catalogue, and its example is a family that works."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

from cortiq.ir import Recurrent, Ring, Slot, verify
from cortiq.ir.layers import LAYERS
from cortiq.ir.ops import PRIMITIVES
from cortiq.models import llama

TEXT = (Path(__file__).parents[2] / "docs" / "ir.md").read_text()
CODE = re.search(r"```python\n(.*?)```", TEXT, re.DOTALL)[1]


def section(title):
    return re.search(rf"\n##+ {title}\n(.*?)(?=\n##+ )", TEXT, re.DOTALL)[1]


def test_every_layer_primitive_and_slot_is_listed():
    primitives = set(re.findall(r"`(\w+)", section("Primitives")))
    layers = set(re.findall(r"`(\w+)", section("Layers")))
    slots = set(re.findall(r"`(\w+)", section("State slots")))
    assert {op.__name__ for op in PRIMITIVES} <= primitives
    assert {op.__name__ for op in LAYERS} <= layers
    assert {kind.__name__ for kind in Slot.__subclasses__()} <= slots
    assert Ring in Slot.__subclasses__() and Recurrent in Slot.__subclasses__()


def test_what_is_planned_does_not_exist_yet():
    planned = set(re.findall(r"^\| `(\w+)", section("Planned operators"), re.MULTILINE))
    assert not planned & {op.__name__ for op in PRIMITIVES}
    assert "RowMoments" in planned


def test_the_example_is_a_family():
    family = ModuleType("plain")
    sys.modules["plain"] = family  # dataclasses look their module up
    try:
        exec(CODE, family.__dict__)
        sizes = {
            "vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2,
        }  # fmt: skip
        program = family.build(family.Config(**sizes), 64)
    finally:
        del sys.modules["plain"]
    verify(program)
    same = llama.build(llama.Config(**sizes), 64)
    assert program.weights == same.weights
    assert program.trunk == same.trunk
