"""Configurations as models were published: every key known, and what follows from them."""

from __future__ import annotations

import pytest

from cortiq.errors import FormatError
from cortiq.ir.layers import Attention, LatentAttention
from cortiq.ir.printer import describe_rope
from cortiq.models.config import config_from_json
from cortiq.models.registry import families
from cortiq.models.synthetic import CONFIGS
from cortiq.numerics.rope_scaling import Default, Linear, LongRope, NTKAlpha

COMMON = {
    "_name_or_path": "x", "architectures": ["X"], "attention_dropout": 0.0, "bos_token_id": 1,
    "eos_token_id": [2, 3], "hidden_act": "silu", "initializer_range": 0.02,
    "torch_dtype": "bfloat16", "transformers_version": "4.48.0", "use_cache": True,
}  # fmt: skip
QWEN2 = {
    "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "max_window_layers": 21,
    "max_position_embeddings": 32768, "num_attention_heads": 14, "num_hidden_layers": 24,
    "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "use_mrope": False,
    "sliding_window": 32768, "tie_word_embeddings": True, "use_sliding_window": False,
    "vocab_size": 151936,
}  # fmt: skip
QWEN3 = {
    "model_type": "qwen3", "attention_bias": False, "head_dim": 128, "hidden_size": 1024,
    "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28,
    "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None,
    "tie_word_embeddings": True, "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
SMOLLM3 = {
    "model_type": "smollm3", "attention_bias": False, "hidden_size": 2048,
    "intermediate_size": 11008, "max_position_embeddings": 65536, "max_window_layers": 28,
    "mlp_bias": False, "no_rope_layer_interval": 4, "no_rope_layers": [1, 1, 1, 0] * 9,
    "layer_types": ["full_attention"] * 36, "num_attention_heads": 16, "num_hidden_layers": 36,
    "num_key_value_heads": 4, "pad_token_id": 128004, "pretraining_tp": 2, "rms_norm_eps": 1e-06,
    "rope_scaling": None, "rope_theta": 5000000.0, "sliding_window": None,
    "use_sliding_window": False, "vocab_size": 128256, "transformers.js_config": {"dtype": "q4"},
}  # fmt: skip
PHI3 = {
    "model_type": "phi3", "attention_bias": False, "auto_map": {"AutoConfig": "a.B"},
    "embd_pdrop": 0.0, "hidden_size": 3072, "intermediate_size": 8192,
    "max_position_embeddings": 4096, "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 32, "original_max_position_embeddings": 4096, "pad_token_id": 32000,
    "resid_pdrop": 0.0, "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 10000.0,
    "sliding_window": 2047, "tie_word_embeddings": False, "vocab_size": 32064,
}  # fmt: skip
PHI4_MINI = PHI3 | {
    "full_attn_mod": 1, "interpolate_factor": 1, "lm_head_bias": False, "mlp_bias": False,
    "max_position_embeddings": 131072, "num_attention_heads": 24, "num_key_value_heads": 8,
    "partial_rotary_factor": 0.75, "sliding_window": 262144, "tie_word_embeddings": True,
    "vocab_size": 200064,
    "rope_scaling": {"type": "longrope", "long_factor": [1.5] * 48, "short_factor": [1.0] * 48},
}  # fmt: skip
OLMO2 = {
    "model_type": "olmo2", "attention_bias": False, "hidden_size": 4096,
    "intermediate_size": 11008, "max_position_embeddings": 4096, "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 32, "pad_token_id": 100277,
    "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 500000,
    "tie_word_embeddings": False, "vocab_size": 100352,
}  # fmt: skip
GRANITE = {
    "model_type": "granite", "attention_bias": False, "attention_multiplier": 0.0078125,
    "embedding_multiplier": 12.0, "hidden_size": 4096, "intermediate_size": 12800,
    "logits_scaling": 16.0, "max_position_embeddings": 131072, "mlp_bias": False,
    "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8,
    "pad_token_id": 0, "residual_multiplier": 0.22, "rms_norm_eps": 1e-05, "rope_scaling": None,
    "rope_theta": 10000000.0, "tie_word_embeddings": True, "vocab_size": 49155,
}  # fmt: skip
GEMMA2 = {
    "model_type": "gemma2", "attention_bias": False, "attn_logit_softcapping": 50.0,
    "cache_implementation": "hybrid", "final_logit_softcapping": 30.0, "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 2304, "intermediate_size": 9216, "max_position_embeddings": 8192,
    "num_attention_heads": 8, "num_hidden_layers": 26, "num_key_value_heads": 4,
    "pad_token_id": 0, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_theta": 10000.0,
    "sliding_window": 4096, "vocab_size": 256000,
}  # fmt: skip
HUNYUAN = {
    "model_type": "hunyuan_v1_dense", "add_classification_head": False, "attention_bias": False,
    "attention_head_dim": 128, "cla_share_factor": 2, "class_num": 0, "dense_list": [4096, 0],
    "head_dim": 128, "hidden_size": 4096, "im_end_id": 5, "im_newline_id": 11, "im_start_id": 4,
    "intermediate_size": 14336, "mask_init_id": 12, "max_position_embeddings": 32768,
    "mlp_bias": False, "norm_type": "rms", "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "org_vocab_size": 128167, "pad_id": 127961, "pad_token_id": 127961,
    "pool_type": "last", "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
    "rope_scaling": {"alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0,
                     "mscale": 1.0, "mscale_all_dim": 1.0, "type": "dynamic"},
    "sep_token_id": 127962, "text_end_id": 7, "text_start_id": 6, "tie_word_embeddings": False,
    "use_cla": False, "use_qk_norm": True, "vocab_size": 128167,
}  # fmt: skip
STARCODER2 = {
    "model_type": "starcoder2", "attention_softmax_in_fp32": True, "embedding_dropout": 0.1,
    "hidden_act": "gelu_pytorch_tanh", "hidden_size": 3072, "intermediate_size": 12288,
    "layer_norm_epsilon": 1e-05, "max_position_embeddings": 16384, "mlp_type": "default",
    "norm_epsilon": 1e-05, "norm_type": "layer_norm", "num_attention_heads": 24,
    "num_hidden_layers": 30, "num_key_value_heads": 2, "residual_dropout": 0.1,
    "rope_theta": 999999.4420358813, "scale_attention_softmax_in_fp32": True,
    "scale_attn_weights": True, "sliding_window": 4096, "use_bias": True, "vocab_size": 49152,
}  # fmt: skip
MINICPM3 = {
    "model_type": "minicpm3", "auto_map": {"AutoConfig": "a.B"}, "dim_model_base": 256,
    "hidden_size": 2560, "intermediate_size": 6400, "kv_lora_rank": 256,
    "max_position_embeddings": 32768, "num_attention_heads": 40, "num_hidden_layers": 62,
    "num_key_value_heads": 40, "q_lora_rank": 768, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32,
    "rms_norm_eps": 1e-05, "scale_depth": 1.4, "scale_emb": 12, "vocab_size": 73448,
    "rope_scaling": {"type": "longrope", "long_factor": [1.5] * 16, "short_factor": [1.0] * 16,
                     "original_max_position_embeddings": 32768},
}  # fmt: skip


def mixers(values, context=None, common=COMMON):
    """The layers that attend, of a program built for a context."""
    given = common | values
    family = families()[values["model_type"]]
    config = config_from_json(family.Config, family.KEYS, given, where="config.json")
    program = family.build(config, context or config.max_position_embeddings)
    nodes = program.trunk.nodes
    return [n.op for n in nodes if isinstance(n.op, Attention | LatentAttention)]


@pytest.mark.parametrize("name", ["tiny-gemma3", "mini-mimo_v2_flash", "mini-laguna"])
def test_t18_an_explicit_schedule_gives_windowed_layers_the_local_table(name):
    schedule = ["sliding_attention"] * 3 + ["full_attention"]
    turned = {} if name == "tiny-gemma3" else {"partial_rotary_factor": 0.5}
    values = dict(CONFIGS[name]) | {
        "num_hidden_layers": 4, "layer_types": schedule, "sliding_window": 24,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 300.0} | turned,
            "full_attention": {"rope_type": "linear", "rope_theta": 2000.0, "factor": 8.0} | turned,
        },
    }  # fmt: skip
    if "num_attention_heads_per_layer" in values:
        values["num_attention_heads_per_layer"] = [4] * 4
    layers = mixers(values, common={})
    assert [op.window for op in layers] == [layers[0].window] * 3 + [None] != [None] * 4
    assert [op.rope.base for op in layers] == [300.0] * 3 + [2000.0]
    assert [op.rope.scaling for op in layers] == [Default()] * 3 + [Linear(8.0)]


@pytest.mark.parametrize(
    ("values", "layers", "heads", "head"),
    [
        (QWEN2, 24, 14, 64), (QWEN3, 28, 16, 128), (SMOLLM3, 36, 16, 128), (PHI3, 32, 32, 96),
        (PHI4_MINI, 32, 24, 128), (OLMO2, 32, 32, 128), (GRANITE, 40, 32, 128),
        (GEMMA2, 26, 8, 256), (HUNYUAN, 32, 32, 128), (STARCODER2, 30, 24, 128),
    ],
    ids=lambda x: x["model_type"] if isinstance(x, dict) else "",
)  # fmt: skip
def test_geometry(values, layers, heads, head):
    found = mixers(values)
    assert len(found) == layers
    assert {(m.heads, m.head_dim) for m in found} == {(heads, head)}


def test_what_is_special_about_each():
    assert [n for n, m in enumerate(mixers(SMOLLM3)) if m.rope is None] == list(range(3, 36, 4))
    assert {m.window for m in mixers(QWEN2)} == {None}
    assert {m.window for m in mixers(PHI3)} == {2047}
    assert {m.window for m in mixers(STARCODER2)} == {4096}
    assert [m.window for m in mixers(GEMMA2)] == [4096, None] * 13
    assert {m.scale for m in mixers(GRANITE)} == {2.0**-7}
    assert mixers(OLMO2)[0].qk_norm.full_width and mixers(HUNYUAN)[0].qk_norm.after_rope
    latent = mixers(MINICPM3)[0]
    assert (latent.latent, latent.query_latent, latent.value_dim) == (256, 768, 64)


def test_rope_rules_are_fixed_by_the_declared_context():
    short, long = (mixers(PHI4_MINI, context)[0].rope for context in (4096, 4097))
    assert isinstance(short.scaling, LongRope) and short.dim == 96
    powers = 10000.0 ** (-2 * 5 / 96)
    assert float(short.frequencies[5]) == pytest.approx(powers)
    assert float(long.frequencies[5]) == pytest.approx(powers / 1.5)
    assert short.amplitude == long.amplitude == pytest.approx((1 + 5 / 12) ** 0.5)
    assert describe_rope(short).endswith("its short factors: context 4096 ≤ 4096, fixed at load")
    assert describe_rope(long).endswith("its long factors: context 4097 > 4096, fixed at load")
    assert mixers(HUNYUAN)[0].rope.scaling == NTKAlpha(1000.0)
    assert "alpha 1000 for every length" in describe_rope(mixers(HUNYUAN)[0].rope)
    assert mixers(PHI3)[0].rope.scaling == Default()
    assert mixers(MINICPM3)[0].rope.amplitude == 1


def test_old_names_of_longrope_are_longrope():
    for name in ("su", "yarn"):
        old = PHI4_MINI | {"rope_scaling": PHI4_MINI["rope_scaling"] | {"type": name}}
        assert mixers(old)[0].rope == mixers(PHI4_MINI)[0].rope


def test_granite_4_has_two_names_for_its_layers_and_no_bound_of_its_step():
    kinds = {"mamba": "linear_attention", "attention": "full_attention"}
    old = ["mamba"] * 3 + ["attention"]
    values = GRANITE | {
        "model_type": "granitemoehybrid", "num_hidden_layers": 4, "layer_types": old,
        "num_local_experts": 0, "num_experts_per_tok": 1, "shared_intermediate_size": 8192,
        "mamba_n_heads": 64, "mamba_d_head": 128, "mamba_chunk_size": 256,
        "position_embedding_type": "nope", "time_step_limit": [0.0, float("inf")],
    }  # fmt: skip
    del values["mlp_bias"]
    assert [m.rope for m in mixers(values)] == [None]
    new = values | {"layer_types": [kinds[kind] for kind in old], "time_step_limit": None}
    assert mixers(new) == mixers(values)


def test_nemotron_h_lists_its_layers_by_name_or_by_letter():
    values = {
        "model_type": "nemotron_h", "vocab_size": 131072, "hidden_size": 4096,
        "intermediate_size": 21504, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128, "layer_norm_epsilon": 1e-5, "n_groups": 8, "ssm_state_size": 128,
        "mamba_num_heads": 128, "mamba_head_dim": 64, "chunk_size": 128, "expand": 2,
        "tie_word_embeddings": False, "hybrid_override_pattern": "M-M*-", "num_hidden_layers": 5,
    }  # fmt: skip
    del (common := dict(COMMON))["hidden_act"]
    family = families()["nemotron_h"]
    kinds = []
    names = ["mamba", "mlp", "mamba", "attention", "mlp"]
    other = {"layers_block_type": names, "hybrid_override_pattern": None}
    for given in (common | values, common | values | other):
        config = config_from_json(family.Config, family.KEYS, given, where="config.json")
        kinds.append(config.kinds())
    assert kinds[0] == kinds[1] and len(kinds[0]) == config.num_hidden_layers == 5
    with pytest.raises(FormatError, match="num_hidden_layers is 6, but 5"):
        config_from_json(family.Config, family.KEYS, given | {"num_hidden_layers": 6}, where="x")


KIMI_FULL = [4, 8, 12, 16, 20, 24, 27]
KIMI = COMMON | {
    "model_type": "kimi_linear", "auto_map": {"AutoConfig": "a.B"}, "first_k_dense_replace": 1,
    "head_dim": 72, "hidden_size": 2304, "intermediate_size": 9216, "kv_lora_rank": 512,
    "linear_attn_config": {
        "full_attn_layers": KIMI_FULL, "head_dim": 128, "num_heads": 32,
        "kda_layers": [n for n in range(1, 28) if n not in KIMI_FULL], "short_conv_kernel_size": 4,
    },
    "mla_use_nope": True, "model_max_length": 1048576, "moe_intermediate_size": 1024,
    "moe_layer_freq": 1, "moe_renormalize": True, "moe_router_activation_func": "sigmoid",
    "num_attention_heads": 32, "num_expert_group": 1, "num_experts": 256,
    "num_experts_per_token": 8, "num_hidden_layers": 27, "num_key_value_heads": 32,
    "num_nextn_predict_layers": 0, "num_shared_experts": 1, "pad_token_id": 163839,
    "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05,
    "rope_scaling": None, "rope_theta": 10000.0, "routed_scaling_factor": 2.446,
    "tie_word_embeddings": False, "topk_group": 1, "use_grouped_topk": True, "v_head_dim": 128,
    "vocab_size": 163840,
}  # fmt: skip


def kimi(**changes):
    family = families()["kimi_linear"]
    given = {key: v for key, v in (KIMI | changes).items() if v is not ...}
    return config_from_json(family.Config, family.KEYS, given, where="config.json")


def test_kimi_linear_in_its_older_and_its_newer_form():
    old = kimi()
    attends = [n for n, kind in enumerate(old.kinds(), 1) if kind == "full_attention"]
    assert attends == KIMI_FULL and old.sparse() == (False, *[True] * 26)
    assert old.max_position_embeddings == 2**20
    assert {(m.heads, m.latent, m.rope, m.query_latent) for m in mixers(KIMI, 64)} == {
        (32, 512, None, 0)
    }
    sizes = {"linear_head_dim": 128, "linear_num_heads": 32, "linear_conv_kernel_dim": 4}
    new = kimi(linear_attn_config=..., layer_types=list(old.kinds()), **sizes)
    assert (new.kinds(), new.delta()) == (old.kinds(), old.delta())
    assert kimi(layer_types=list(old.kinds()), **sizes).delta() == old.delta()
    other = kimi(linear_attn_config={"head_dim": 64, "num_heads": 6, "short_conv_kernel_size": 3})
    assert (d := other.delta()).key_dim == d.value_dim == d.decay_rank == d.gate_rank == 64
    assert (d.heads, d.kernel) == (6, 3)
    assert kimi(first_k_dense_replace=3).sparse().index(True) == 3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layer_types": ["linear_attention"] * 27}, "contradicts layer_types"),
        ({"num_hidden_layers": 28}, "every layer once"),
        ({"linear_attn_config": {"kda_layers": list(range(27))}}, "every layer once"),
        ({"linear_attn_config": {"kda_layers": [1, "2"]}}, "every layer once"),
        ({"linear_attn_config": {"num_heads": 0}}, "num_heads is 0"),
        ({"linear_head_dim": 64}, "linear_head_dim is 64, head_dim 128"),
        ({"mlp_layer_types": ["sparse"] * 27}, "first_k_dense_replace, 1"),
    ],
)
def test_kimi_linear_that_contradicts_itself_is_refused(changes, words):
    config = kimi(**changes)
    with pytest.raises(FormatError, match=words):
        families()["kimi_linear"].build(config, 64)
