"""The scaffold of a family: what it derives of transformers' configurations."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from family_harness import COMMON, Family, declared

TOOL = runpy.run_path(str(Path(__file__).resolve().parents[2] / "tools" / "scaffold_family.py"))


@pytest.mark.parametrize("name", ["jais2", "phi", "nemotron", "lfm3"])
def test_every_field_that_a_family_reads_is_in_its_scaffold(name, capsys):
    family = next(f for f in declared() if f.name == name)
    assert TOOL["main"]([family.config]) == 0
    config, declaration = capsys.readouterr().out.split("# tests/model/families_*.py\n")
    aliases = {field: key for key, field in family.module.KEYS.aliases.items()}
    for field in family.module.Config.__annotations__:
        if field not in ("default_theta", "default_turned", "family"):
            names = (field, aliases.get(field, field))
            assert any(f"    {n}: " in config for n in names) or field in TOOL["GIVEN"], field
    made = eval(declaration.partition(" = ")[2], {"Family": Family})
    assert (made.name, made.config) == (name, family.config)
    assert all(made.base[key] < COMMON["vocab_size"] for key in TOOL["TOKENS"] if key in made.base)
    given = {*made.switches, *made.base, *(key for move in made.moves for key in move)}
    assert {key for key in family.switches if key != "rope_parameters"} <= given


def test_a_class_that_is_not_there_is_named(capsys):
    assert TOOL["main"](["NobodysConfig"]) == 2
    assert "NobodysConfig" in capsys.readouterr().err
