"""What GGUF files do not say, or say of windows, is read as llama.cpp reads it."""

from __future__ import annotations

import pytest

from cortiq.errors import FormatError, UnsupportedError
from cortiq.ir.layers import MoE
from cortiq.models import (
    afmoe,
    cohere,
    cohere2,
    deepseek2,
    exaone4,
    exaone_moe,
    gemma3,
    llama,
    minimax_m2,
    qwen3,
    smollm3,
)
from cortiq.models.gguf_config import config_from_gguf
from cortiq.models.registry import gguf_architectures

LATENT = {
    "hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1,
    "kv_lora_rank": 32, "qk_rope_head_dim": 8, "key_length_mla": 24, "value_length_mla": 16,
    "moe_intermediate_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 2, "source": "gguf",
}  # fmt: skip


@pytest.mark.parametrize(
    ("layers", "vocab", "given", "scores"),
    [
        (47, 154880, None, "sigmoid"), (48, 154880, None, "sigmoid"), (47, 154880, 0, "sigmoid"),
        (46, 154880, None, "softmax"), (47, 154879, None, "softmax"), (47, 154880, 1, "softmax"),
        (46, 154880, 2, "sigmoid"),
    ],
)  # fmt: skip
def test_routers_of_glm_flash_take_a_sigmoid_where_files_do_not_say(layers, vocab, given, scores):
    config = deepseek2.Config(
        **LATENT, num_hidden_layers=layers, vocab_size=vocab, expert_gating_func=given
    )
    program = deepseek2.build(config, 16)
    experts = [node.op for node in program.trunk.nodes if isinstance(node.op, MoE)]
    assert len(experts) == layers - 1
    assert {op.router.kind for op in experts} == {scores}
    assert {op.selection_bias for op in experts} == {scores == "sigmoid"}


class Metadata:
    """A GGUF file's metadata, with a table of 100 rows and no other tensor."""

    tensor_names = ("token_embd.weight",)

    def __init__(self, architecture, given):
        self.architecture = architecture
        self.config = {f"{architecture}.{key}": value for key, value in given.items()}

    def __contains__(self, name):
        return name in self.tensor_names

    def tensor(self, name):
        return type("Tensor", (), {"shape": (100, 64)})


def read(family, given):
    source = Metadata(family.ARCHITECTURES[0], SIZES | given)
    return config_from_gguf(family.Config, family.KEYS, source, where="file")


SIZES = {
    "block_count": 4, "context_length": 64, "embedding_length": 64, "feed_forward_length": 96,
    "attention.head_count": 4, "attention.key_length": 16,
}  # fmt: skip


def test_the_attention_factor_of_grok_changes_no_other_family():
    yarn = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}
    assert read(llama, yarn | {"rope.scaling.yarn_attn_factor": 1.5}) == read(llama, yarn)


@pytest.mark.parametrize(("given", "whole"), [({}, False), ({"expert_weights_norm": False}, False),
                                              ({"expert_weights_norm": True}, True)])  # fmt: skip
def test_afmoe_divides_weights_of_experts_where_files_say_so(given, whole):
    program = afmoe.build(read(afmoe, {"leading_dense_block_count": 1, **given}), 16)
    experts = [node.op for node in program.trunk.nodes if isinstance(node.op, MoE)]
    assert [op.router.renormalise for op in experts] == [whole] * 3


@pytest.mark.parametrize("family", [qwen3, smollm3, cohere, gemma3])
def test_what_is_usual_in_folders_is_not_what_files_leave_out(family):
    without = {k: v for k, v in SIZES.items() if k != "attention.key_length"}
    source = Metadata(gguf_architectures(family)[-1], without | {"attention.head_count": 2})
    config = config_from_gguf(family.Config, family.KEYS, source, where="file")
    assert (config.kv_heads, config.head_width) == (2, 32)
    assert config.rope_parameters["rope_theta"] == 10000.0
    assert getattr(config, "logit_scale", 1.0) == 1.0
    windows = config.windows() if hasattr(config, "windows") else ()
    assert all(window is None for window in windows)


def test_keys_of_one_width_agree():
    experts = {"expert_count": 4, "expert_used_count": 2}
    config = read(minimax_m2, {**experts, "expert_feed_forward_length": 96})
    assert config.intermediate_size == SIZES["feed_forward_length"] == 96
    with pytest.raises(FormatError, match="intermediate_size is 96 and 95"):
        read(minimax_m2, {**experts, "expert_feed_forward_length": 95})


@pytest.mark.parametrize("family", [afmoe, cohere2, exaone4, exaone_moe])
def test_the_base_of_windows_is_the_base_where_they_alone_turn(family):
    given = {"rope.freq_base": 500.0, "attention.sliding_window": 8}
    assert read(family, given).rope_parameters["rope_theta"] == 500.0
    config = read(family, given | {"rope.freq_base_swa": 300.0})
    assert config == read(family, given | {"rope.freq_base": 300.0})
    with pytest.raises(UnsupportedError, match="freq_base_swa"):
        read(llama, {"rope.freq_base_swa": 300.0})
