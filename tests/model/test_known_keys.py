"""Every known key of GGUF files that carries computation moves the logits or is refused.

A key is known where a family's table, or the one of all families, has it. Each is changed in files
that are right otherwise, until one shows it: nothing that a file says is left out silently. Keys of
config.json are changed in `test_every_family.py`.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict

import pytest

pytest.importorskip("transformers")
pytest.importorskip("gguf")

from checkpoints import write
from family_harness import declared, distance, logits_of
from gguf_files import write_gguf

from cortiq.errors import CortiqError
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.ir.printer import rope_tables
from cortiq.models import load_program
from cortiq.models.gguf_keys import GGUF_KEYS, ONLY_GGUF
from cortiq.models.gguf_rope import ROPE_GGUF_KEYS

MOVED = 1e-9
LIMITS = {"context_length", "rope.scaling.original_context_length"}
"""Of the model, and before it was scaled: types of scaling that go by neither have no use of it."""
ALL_EXPERTS = {"gpt_oss", "qwen2_moe", "qwen3_5_moe", "qwen3_moe", "qwen3_next"}
"""Families none of whose layers is dense: their files have a `feed_forward_length` all the same."""
VALUES = {
    "rope.scaling.type": "su", "rope.scaling.factor": 5.0, "rope.scale_linear": 5.0,
    "rope.scaling.attn_factor": 1.5, "rope.scaling.yarn_beta_fast": 3.0,
    "rope.scaling.yarn_beta_slow": 2.0,
}  # fmt: skip
BEFORE = {"gemma3": {"attention.sliding_window_pattern": 2},
          "granitemoehybrid": {"rope.scaling.finetuned": True}}  # fmt: skip
"""Metadata that makes more of a file's keys count: layers without windows, and layers that turn."""
AT_ONCE = {"llama", "phi3", "deepseek_v3", "kimi_linear"}
"""Families that are tried in every run; the others are `slow`."""


def files():
    """Ways of writing a family's files, by the name of the family's module."""
    found = defaultdict(list)
    for family in declared():
        found[family.name] += [(family, how) for how in family.gguf]
    return {name: ways for name, ways in found.items() if ways}


def known_keys(module):
    """Keys that a file of the family may have, and the default of each where it has one."""
    config = getattr(module, "GGUFConfig", module.Config)
    fields = {f.name: f.default for f in dataclasses.fields(config)}
    table = {**GGUF_KEYS, **module.KEYS.gguf}
    known = dict.fromkeys(ROPE_GGUF_KEYS) | ONLY_GGUF | dict(module.KEYS.gguf_only)
    return known | {key: fields[name] for key, name in table.items() if name in fields}


def another(key, value, default):
    """A value that is not the one of a key, and not its default."""
    if key in VALUES:
        return VALUES[key]
    value = default if value is None else value
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, list | tuple) and len(value):
        return [not v if isinstance(v, bool) else v + 1 for v in value]
    if isinstance(value, bool):
        return not value
    if isinstance(value, float):
        return 2 * value or 1.0
    return value + 1 if isinstance(value, int) else 3


def shows(checkpoint, name, value, right, tokens, context):
    """Whether another value of a key moves the logits or is refused."""
    changed = dataclasses.replace(checkpoint, config={**checkpoint.config, name: value})
    try:
        return distance(logits_of(changed, tokens, context), right) > MOVED
    except CortiqError:
        return True


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[] if name in AT_ONCE else pytest.mark.slow) for name in files()
])  # fmt: skip
def test_every_known_key_moves_the_logits_or_is_refused(name, tmp_path):
    unseen, turns = None, False
    for family, how in files()[name]:
        for geometry in reversed(how.geometries):
            folder = tmp_path / f"{family}-{geometry}"
            written = write(family.case(geometry), folder)
            write_gguf(folder / "model.gguf", written.folder, how)
            opened, prefix = open_checkpoint(folder / "model.gguf"), f"{how.architecture}."
            more = {prefix + key: value for key, value in BEFORE.get(name, {}).items()}
            opened = dataclasses.replace(opened, config={**opened.config, **more})
            known = known_keys(family.module)
            unseen = set(known) if unseen is None else unseen
            right = logits_of(opened, written.tokens, family.context)
            turns |= bool(rope_tables(load_program(opened, context=family.context).program))
            for key in sorted(unseen):
                value = another(key, opened.config.get(prefix + key), known[key])
                facts = right, written.tokens, family.context
                if shows(opened, prefix + key, value, *facts):
                    unseen.remove(key)
    allowed = LIMITS | (set() if turns else ROPE_GGUF_KEYS)
    allowed |= {"feed_forward_length"} if name in ALL_EXPERTS else set()
    assert unseen - allowed == set()
