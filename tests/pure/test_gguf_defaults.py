"""What GGUF files do not say, or say of windows, is read as llama.cpp reads it."""

from __future__ import annotations

import pytest

from cortiq.ir.layers import MoE
from cortiq.models import deepseek2

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
