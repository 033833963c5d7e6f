"""HunYuan 4's folders: three forms of names, and the words that say which pairs RoPE turns."""

from __future__ import annotations

import json
import re

import pytest

pytest.importorskip("transformers")

import numpy as np
from checkpoints import write
from families_sparse import HY_V4, as_neighbours
from family_harness import changed, distance, logits_of
from safetensors.numpy import load_file, save_file

from cortiq.errors import UnsupportedError
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.models import load_program

PUBLISHED = (  # what transformers saves, and what was published
    (r"\.hc_pre\.(hc_\w+_layer)\.", r".\1.hc_pre."),
    (r"model\.hc_pre\.hc_head\.", "model.hc_head."),
    (r"\.mlp\.(shared_experts\.)?linear_gate\.", r".mlp.\1gate_proj."),
)
MODULES = (
    (r"\.hc_attn_layer\.hc_pre\.hc_", ".attn_hc."), (r"\.hc_mlp_layer\.hc_pre\.hc_", ".ffn_hc."),
    (r"\.hc_head_", ".hc_"), (r"\.learnable_sink_param", ".sinks"),
    (r"\.self_attn\.linear_gate\.", ".self_attn.gate_proj."),
)  # fmt: skip


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder that transformers has saved."""
    return write(HY_V4.case("wide"), tmp_path_factory.mktemp("hunyuan"))


def rewritten(model, folder, rename=(), change=lambda name, values: values):
    """A copy with other names and values."""
    tensors = {}
    for name, values in load_file(model.folder / "model.safetensors").items():
        new = name
        for pattern, form in rename:
            new = re.sub(pattern, form, new)
        tensors[new] = np.ascontiguousarray(change(name, values))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_bytes((model.folder / "config.json").read_bytes())
    return set(tensors)


@pytest.mark.parametrize(
    ("rules", "known"),
    [
        (PUBLISHED, "model.layers.0.hc_attn_layer.hc_pre.hc_fn"),
        (PUBLISHED + MODULES, "model.layers.0.attn_hc.fn"),
    ],
    ids=["published", "modules"],
)
def test_every_form_of_names_is_the_same_model(rules, known, written, tmp_path):
    names = rewritten(written, tmp_path, rules)
    assert known in names
    assert distance(logits_of(open_checkpoint(tmp_path), written.tokens), written.logits) < 1e-5


def test_layers_by_their_published_name_turn_neighbours(written, tmp_path):
    config = open_checkpoint(written.folder).config
    turned, heads = config["qk_rope_head_dim"], config["num_attention_heads"]
    of = {"q_b_proj": heads, "wq_b": config["index_n_heads"], "kv_a_proj_with_mqa": 1, "wk": 1,
          "k_norm": 1}  # fmt: skip

    def change(name, values):
        part = name.split(".")[-2]
        return as_neighbours(values, of[part], turned) if part in of else values

    rewritten(written, tmp_path, (), change)
    kinds = ["deepseek_sparse_attention"] * config["num_hidden_layers"]
    (tmp_path / "config.json").write_text(json.dumps({**config, "layer_types": kinds}))
    found = open_checkpoint(tmp_path)
    assert distance(logits_of(found, written.tokens), written.logits) < 1e-5
    halves = logits_of(changed(found, {"rope_interleave": False}), written.tokens)
    assert distance(halves, written.logits) > 1e-3


def test_a_limit_that_is_not_above_zero_is_none(written):
    checkpoint = open_checkpoint(written.folder)
    one, other = (changed(checkpoint, {"swiglu_limit": limit}) for limit in (0.0, -1.0))
    wide = logits_of(changed(checkpoint, {"swiglu_limit": 1e6}), written.tokens)
    assert distance(logits_of(one, written.tokens), wide) < 1e-9
    assert distance(logits_of(other, written.tokens), wide) < 1e-9


def test_gguf_files_whose_limits_differ_by_layer_are_refused(written, tmp_path):
    pytest.importorskip("gguf")
    from gguf_files import write_gguf

    def change(values, tensors):
        values["swiglu_clamp_exp"] = [10.0, 9.0]

    write_gguf(tmp_path / "model.gguf", written.folder, HY_V4.gguf[0], change)
    with pytest.raises(UnsupportedError, match="swiglu_clamp_exp"):
        load_program(open_checkpoint(tmp_path / "model.gguf"))
