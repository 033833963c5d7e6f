"""Step's older configurations number layers and list rotary bases: transformers reads both."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")

import transformers
from checkpoints import write
from families_late import STEP
from family_harness import changed, distance, logits_of

from cortiq.errors import FormatError, UnsupportedError
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.models import load_program

DRAFTS = 2
FULL, LOCAL = "full_attention", "sliding_attention"


def older(config):
    """Changes that bring a configuration into the older form, padded for two layers that draft."""
    kinds, rope = config["layer_types"], config["rope_parameters"]
    of_layer = [rope[kind] for kind in kinds] + [rope[FULL]] * DRAFTS
    sparse = [str(n) for n, kind in enumerate(config["mlp_layer_types"]) if kind == "sparse"]
    moved = {
        "mlp_layer_types": ..., "rope_parameters": ..., "num_sliding_attention_heads": ...,
        "per_layer_config": ..., "query_pre_attn_scalar": ...,
    }  # fmt: skip
    return moved | {
        "layer_types": [*kinds, *[LOCAL] * DRAFTS], "moe_layers_enum": ",".join(sparse),
        "swiglu_limits": [*config["swiglu_limits"], *[None] * DRAFTS],
        "swiglu_limits_shared": [*config["swiglu_limits_shared"], *[None] * DRAFTS],
        "rope_theta": [one["rope_theta"] for one in of_layer],
        "partial_rotary_factors": [one["partial_rotary_factor"] for one in of_layer],
        "attention_other_setting": {
            "attention_type": LOCAL, "head_dim": config["head_dim"],
            "num_attention_heads": config["num_sliding_attention_heads"],
        },
        "num_nextn_predict_layers": DRAFTS, "norm_expert_weight": True,
        "use_head_wise_attn_gate": True, "use_moe_router_bias": True, "need_fp32_gate": True,
        "moe_router_activation": "sigmoid",
    }  # fmt: skip


def test_older_keys_say_what_newer_ones_do(tmp_path):
    model = write(STEP.case("odd"), tmp_path)
    checkpoint = open_checkpoint(model.folder)
    changes = older(checkpoint.config)
    kept = {k: v for k, v in {**checkpoint.config, **changes}.items() if v is not ...}
    theirs = transformers.Step3p7TextConfig(**kept)
    for key in ("layer_types", "mlp_layer_types", "rope_parameters"):
        assert getattr(theirs, key) == checkpoint.config[key]
    again = changed(checkpoint, changes)
    assert distance(logits_of(again, model.tokens), model.logits) < 1e-5
    for key, value in (
        ("norm_expert_weight", False), ("use_head_wise_attn_gate", False),
        ("attention_other_setting", {"num_attention_groups": 7}),
        ("rope_theta", [*range(1, 4), 1, 1]),
    ):  # fmt: skip
        with pytest.raises(UnsupportedError):
            load_program(changed(again, {key: value}))
    for key in ("attention_other_setting", "moe_layers_enum"):
        with pytest.raises(FormatError, match=key):
            load_program(changed(again, {key: 3}))
    moved = changed(again, {"moe_layers_enum": "0"})
    with pytest.raises(FormatError, match="tensors of its architecture"):
        load_program(moved)
