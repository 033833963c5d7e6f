"""Configurations as published models write them (transformers 4), and what they come to mean."""

from __future__ import annotations

import ast
from dataclasses import fields
from importlib import import_module
from math import isclose
from pathlib import Path

import pytest

from cortiq.errors import CortiqError, FormatError, RequestError, UnsupportedError
from cortiq.ir import verify
from cortiq.models import exaone4, gemma3, glm4_moe, granite, lfm2, llama, mixtral
from cortiq.models.config import config_from_json
from cortiq.models.gguf_config import config_from_gguf
from cortiq.models.registry import OWN, architecture_of, describe_families, families, family_for
from cortiq.models.rope import rope_table
from cortiq.models.synthetic_configs import CONFIGS
from cortiq.numerics.rope_scaling import Linear, Llama3

SMOLLM2 = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 576,
    "initializer_range": 0.0416, "intermediate_size": 1536, "is_llama_config": True,
    "max_position_embeddings": 8192, "mlp_bias": False, "model_type": "llama",
    "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3,
    "pad_token_id": 2, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_interleaved": False,
    "rope_scaling": None, "rope_theta": 100000, "tie_word_embeddings": True,
    "torch_dtype": "bfloat16", "transformers.js_config": {"dtype": "q4"},
    "transformers_version": "4.42.3", "use_cache": True, "vocab_size": 49152,
}  # fmt: skip
LLAMA3 = {
    "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "head_dim": 64,
    "hidden_size": 2048, "intermediate_size": 8192, "max_position_embeddings": 131072,
    "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
    "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                     "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "tie_word_embeddings": True, "vocab_size": 128256,
}  # fmt: skip
MISTRAL = {
    "architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
    "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mistral",
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "vocab_size": 32000,
}  # fmt: skip
GEMMA = {
    "architectures": ["Gemma3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "attn_logit_softcapping": None, "bos_token_id": 2, "cache_implementation": "hybrid",
    "eos_token_id": [1, 106], "final_logit_softcapping": None, "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152, "initializer_range": 0.02,
    "intermediate_size": 6912, "max_position_embeddings": 32768, "model_type": "gemma3_text",
    "num_attention_heads": 4, "num_hidden_layers": 26, "num_key_value_heads": 1,
    "pad_token_id": 0, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06,
    "rope_local_base_freq": 10000, "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    "rope_theta": 1000000, "sliding_window": 512, "sliding_window_pattern": 6, "use_cache": True,
    "vocab_size": 262144,
}  # fmt: skip
MIXTRAL = {
    "architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0, "hidden_act": "silu",
    "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768,
    "model_type": "mixtral", "num_attention_heads": 32, "num_experts_per_tok": 2,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8,
    "output_router_logits": False, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.02, "sliding_window": None, "tie_word_embeddings": False,
    "vocab_size": 32000,
}  # fmt: skip
LFM2 = {
    "architectures": ["Lfm2ForCausalLM"], "block_auto_adjust_ff_dim": True, "block_dim": 2048,
    "block_ff_dim": 12288, "block_ffn_dim_multiplier": 1.0, "block_mlp_init_scale": 1.0,
    "block_multiple_of": 256, "block_norm_eps": 1e-05, "block_out_init_scale": 1.0,
    "block_use_swiglu": True, "block_use_xavier_init": True, "conv_L_cache": 3,
    "conv_bias": False, "conv_dim": 2048, "conv_dim_out": 2048, "conv_use_xavier_init": True,
    "full_attn_idxs": [2, 5, 8, 10, 12, 14], "hidden_size": 2048,
    "max_position_embeddings": 128000, "model_type": "lfm2", "norm_eps": 1e-05,
    "num_attention_heads": 32, "num_heads": 32, "num_hidden_layers": 16,
    "num_key_value_heads": 8, "rope_theta": 1000000.0, "theta": 1000000.0,
    "use_pos_enc": True, "vocab_size": 65536,
}  # fmt: skip


OLD_DRAWING = {
    "bad_words_ids": None, "begin_suppress_tokens": None, "decoder_start_token_id": None,
    "diversity_penalty": 0.0, "do_sample": False, "early_stopping": False,
    "encoder_no_repeat_ngram_size": 0, "exponential_decay_length_penalty": None,
    "forced_bos_token_id": None, "forced_eos_token_id": None, "length_penalty": 1.0,
    "max_length": 20, "min_length": 0, "no_repeat_ngram_size": 0, "num_beam_groups": 1,
    "num_beams": 1, "num_return_sequences": 1, "output_scores": False, "prefix": None,
    "remove_invalid_values": False, "repetition_penalty": 1.0, "return_dict_in_generate": False,
    "sep_token_id": None, "suppress_tokens": None, "task_specific_params": None,
    "temperature": 1.0, "top_k": 50, "top_p": 1.0, "typical_p": 1.0,
    "finetuning_task": None, "tf_legacy_loss": False, "torchscript": False,
    "tokenizer_class": None, "pruned_heads": {}, "tie_encoder_decoder": False,
    "cross_attention_hidden_size": None, "use_bfloat16": False, "add_cross_attention": False,
}  # fmt: skip
"""What `PretrainedConfig.to_dict` of transformers 4.30 gives beside what version 5 does."""


def read(family, config):
    return config_from_json(family.Config, family.KEYS, config, where="config.json")


def test_smollm2():
    config = read(llama, SMOLLM2)
    assert (config.kv_heads, config.head_width, config.sliding_window) == (3, 64, None)
    assert rope_table(config, 8192).base == 100000.0
    assert config.tie_word_embeddings


def test_llama3_scaling():
    table = rope_table(read(llama, LLAMA3), 131072)
    assert table.scaling == Llama3(32.0, 1.0, 4.0, 8192)
    assert table.dim == 64


def test_mistral_keeps_its_window_and_its_default():
    assert read(llama, MISTRAL).sliding_window == 4096
    assert read(llama, MISTRAL | {"sliding_window": None}).sliding_window is None
    absent = {k: v for k, v in MISTRAL.items() if k != "sliding_window"}
    assert read(llama, absent).sliding_window == 4096
    assert read(llama, absent | {"model_type": "llama"}).sliding_window is None


def test_gemma3_tables_windows_and_scale():
    config = read(gemma3, GEMMA)
    assert [n for n, w in enumerate(config.windows()) if w is None] == [5, 11, 17, 23]
    assert rope_table(config, 100, "full_attention").scaling == Linear(8.0)
    local = gemma3.local_rope(config, 100)
    assert (local.base, local.scaling) == (10000.0, type(local.scaling)())
    assert config.query_scale == 1 / 16
    assert config.tie_word_embeddings


def test_mixtral():
    config = read(mixtral, MIXTRAL)
    assert (config.num_local_experts, config.num_experts_per_tok) == (8, 2)
    assert config.head_width == 128


def test_lfm2_width_and_layers():
    config = read(lfm2, LFM2)
    assert config.inner == 8192
    assert [n for n, attends in enumerate(config.attends()) if attends] == [2, 5, 8, 10, 12, 14]
    assert config.tie_word_embeddings
    with pytest.raises(FormatError, match="hidden_size is 2048 and 1024"):
        read(lfm2, LFM2 | {"conv_dim": 1024})
    with pytest.raises(UnsupportedError, match="use_pos_enc = False"):
        read(lfm2, LFM2 | {"use_pos_enc": False})


@pytest.mark.parametrize("types", [["conv"] * 15, ["conv"] * 15 + ["mamba"]])
def test_lfm2_layer_types_must_name_every_layer(types):
    config = read(lfm2, {k: v for k, v in LFM2.items() if k != "full_attn_idxs"})
    assert all(config.attends())
    with pytest.raises(FormatError, match="16 layers"):
        read(lfm2, LFM2 | {"layer_types": types}).attends()


def test_gemma3_layer_types_must_name_every_layer():
    with pytest.raises(FormatError, match="26"):
        read(gemma3, GEMMA | {"layer_types": ["full_attention"] * 25}).windows()


def test_unknown_keys_are_refused_by_name():
    with pytest.raises(UnsupportedError, match=r": a_surprise, residual_multiplier\n"):
        read(llama, SMOLLM2 | {"residual_multiplier": 0.2, "a_surprise": 1, "auto_map": {}})


def test_unknown_keys_are_left_out_by_name_only():
    odd = SMOLLM2 | {"a_surprise": 1, "rope_interleaved": True}
    with pytest.raises(UnsupportedError, match="--ignore-unknown-config a_surprise"):
        read(llama, odd)
    names = ["a_surprise", "rope_interleaved"]
    ignoring = config_from_json(llama.Config, llama.KEYS, odd, where="x", ignored=names)
    assert ignoring == read(llama, SMOLLM2)
    with pytest.raises(UnsupportedError, match=": rope_interleaved = True"):
        config_from_json(llama.Config, llama.KEYS, odd, where="x", ignored=["a_surprise"])
    for known in ("hidden_size", "nothing"):
        with pytest.raises(RequestError, match=f"no unknown key {known}"):
            config_from_json(llama.Config, llama.KEYS, SMOLLM2, where="x", ignored=[known])


def test_what_transformers_writes_into_every_file_refuses_none():
    """Its common fields, how a text is drawn (version 4 writes that too), and notes of tools."""
    transformers = pytest.importorskip("transformers")
    common = transformers.PretrainedConfig().to_dict()
    drawing = {key: value for key, value in OLD_DRAWING.items() if key not in common}
    notes = {"unsloth_fixed": True, "unsloth_version": "2025.1", "auto_map": {"A": "b.C"}}
    plain = read(llama, SMOLLM2)
    assert read(llama, {**common, **drawing, **notes, **SMOLLM2}) == plain
    known = transformers.GenerationConfig().to_dict()
    assert len(OLD_DRAWING.keys() & {*known, *vars(transformers.GenerationConfig())}) > 25


@pytest.mark.parametrize(
    "changes",
    [{"pruned_heads": {"0": [1]}}, {"tie_encoder_decoder": True}, {"add_cross_attention": True}],
)
def test_common_fields_that_change_the_graph_are_refused(changes):
    with pytest.raises(UnsupportedError, match=next(iter(changes))):
        read(llama, SMOLLM2 | changes)


@pytest.mark.parametrize(
    ("metadata", "rope"),
    [
        ({}, {"rope_type": "default"}),
        ({"rope.scaling.factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        ({"rope.scale_linear": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        ({"rope.scale_linear": 4.0, "rope.scaling.type": "none"}, {"rope_type": "default"}),
        ({"rope.scaling.factor": 0.0}, {"rope_type": "default"}),
        ({"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.attn_factor": 1.0},
         {"rope_type": "yarn", "factor": 4.0}),
    ],
)  # fmt: skip
def test_gguf_scaling_is_read_as_llama_cpp_reads_it(metadata, rope):
    """A factor without a type is linear; 0 is no factor; `none` scales nothing."""
    made = from_gguf(llama, "llama", GGUF_LLAMA | metadata).rope_parameters
    kept = ("rope_type", "factor", "attention_factor")
    assert {key: made[key] for key in kept if key in made} == rope


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"rope.scaling.type": "su"}, "rope.scaling.type 'su'"),
        ({"rope.scaling.type": "longrope"}, "rope_factors_long"),
        ({"rope.scaling.factor": 4.0, "rope.scale_linear": 2.0}, "differ"),
        ({"rope.scaling.attn_factor": 1.5}, "attn_factor = 1.5 beside linear"),
        ({"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.attn_factor": 1.5},
         "attn_factor = 1.5 beside yarn"),
        ({"rope.scaling.factor": 4.0, "rope.scaling.yarn_beta_fast": 32.0}, "beta_fast = 32.0"),
        ({"rope.scaling.factor": 4.0, "rope.scaling.yarn_ext_factor": 1.0}, "yarn_ext_factor"),
    ],
)  # fmt: skip
def test_gguf_scaling_that_would_be_left_out_is_refused(metadata, words):
    with pytest.raises((UnsupportedError, FormatError), match=words):
        from_gguf(llama, "llama", GGUF_LLAMA | metadata)


def test_two_values_of_one_thing_are_refused():
    config = SMOLLM2 | {"rope_parameters": {"rope_type": "default", "rope_theta": 5.0}}
    with pytest.raises(FormatError, match="rope_theta"):
        read(llama, config)


class GGUF:
    """A GGUF file's metadata and the shapes of its tensors, without a file."""

    kind = "gguf"

    def __init__(self, architecture, metadata, shapes):
        self.architecture, self.shapes = architecture, shapes
        self.config = {f"{architecture}.{k}": v for k, v in metadata.items()}
        self.tensor_names = tuple(shapes)

    def __contains__(self, name):
        return name in self.shapes

    def tensor(self, name):
        return type("Tensor", (), {"shape": self.shapes[name]})


GGUF_LLAMA = {
    "block_count": 2, "context_length": 8192, "embedding_length": 64, "feed_forward_length": 96,
    "attention.head_count": 4, "attention.layer_norm_rms_epsilon": 9.999999747378752e-06,
    "rope.freq_base": 100000.0, "rope.dimension_count": 16,
}  # fmt: skip


def from_gguf(family, architecture, metadata, shapes=()):
    source = GGUF(architecture, metadata, {"token_embd.weight": (100, 64), **dict(shapes)})
    return config_from_gguf(family.Config, family.KEYS, source, where="file")


def test_gguf_llama():
    config = from_gguf(llama, "llama", GGUF_LLAMA)
    assert config.vocab_size == 100
    assert config.tie_word_embeddings
    assert config.rms_norm_eps == 1e-5  # not 9.999999747378752e-06
    assert (config.source, config.kv_heads, config.head_width) == ("gguf", 4, 16)
    untied = from_gguf(llama, "llama", GGUF_LLAMA, {"output.weight": (100, 64)})
    assert not untied.tie_word_embeddings


def test_gguf_numbers_repeated_for_every_layer_are_one_number():
    plain = from_gguf(llama, "llama", GGUF_LLAMA)
    repeated = {"attention.head_count": [4, 4], "feed_forward_length": [96, 96]}
    assert from_gguf(llama, "llama", GGUF_LLAMA | repeated) == plain
    with pytest.raises(FormatError, match="intermediate_size"):
        from_gguf(llama, "llama", GGUF_LLAMA | {"feed_forward_length": [96, 64]})


def test_gguf_partial_rotation():
    config = from_gguf(llama, "llama", GGUF_LLAMA | {"rope.dimension_count": 8})
    assert rope_table(config, 100).dim == 8


def test_gguf_gemma3_of_27b_divides_its_width_for_the_query_scale():
    metadata = GGUF_LLAMA | {
        "attention.key_length": 128, "attention.value_length": 128, "embedding_length": 5376,
        "attention.head_count": 32, "attention.sliding_window": 1024, "rope.dimension_count": 128,
    }  # fmt: skip
    assert isclose(from_gguf(gemma3, "gemma3", metadata).query_scale, 128**-0.5)
    metadata["block_count"] = 62
    assert isclose(from_gguf(gemma3, "gemma3", metadata).query_scale, 168**-0.5)


def test_gguf_lfm2_names_the_layers_that_attend():
    metadata = GGUF_LLAMA | {
        "block_count": 3, "attention.head_count_kv": [0, 2, 0], "shortconv.l_cache": 3,
    }  # fmt: skip
    config = from_gguf(lfm2, "lfm2", metadata)
    assert config.attends() == (False, True, False)
    assert (config.kv_heads, config.inner) == (2, 96)


@pytest.mark.parametrize(
    ("pattern", "local"),
    [(2, [True, False, True]), (0, [True] * 3), ([1, 0, 0], [True, False, False]),
     ([True] * 3, [True] * 3)],
)  # fmt: skip
def test_a_pattern_of_windows_is_a_period_or_a_list(pattern, local):
    metadata = GGUF_LLAMA | {
        "block_count": 3, "attention.sliding_window": 9,
        "attention.sliding_window_pattern": pattern,
    }  # fmt: skip
    config = from_gguf(exaone4, "exaone4", metadata)
    assert [window == 9 for window in config.windows()] == local
    for strange in ("LLLG", 1.5, [1], ["a", "b", "c"]):
        with pytest.raises(FormatError, match="sliding_window_pattern"):
            metadata["attention.sliding_window_pattern"] = strange
            from_gguf(exaone4, "exaone4", metadata)


def test_olmo_3_and_olmo_2_are_told_apart_by_windows():
    windowed = GGUF_LLAMA | {"attention.sliding_window": 9}
    assert architecture_of(GGUF("olmo2", windowed, {})) == "olmo2+windows"
    assert architecture_of(GGUF("olmo2", GGUF_LLAMA, {})) == "olmo2"
    assert architecture_of(GGUF("gemma3", windowed, {})) == "gemma3"


def test_keys_that_a_gguf_file_lacks_have_llama_cpps_values():
    config = from_gguf(glm4_moe, "glm4moe", GGUF_LLAMA | {
        "expert_count": 8, "expert_used_count": 2, "expert_weights_scale": 0.0,
    })  # fmt: skip
    assert not config.norm_topk_prob and config.first_k_dense_replace == 0
    assert (config.routed_scaling_factor, config.n_group) == (1.0, 1)
    config = from_gguf(granite, "granite", GGUF_LLAMA | {"logit_scale": 2.0})
    assert config.scale() == 0.25 and config.turns
    still = GGUF_LLAMA | {"logit_scale": 2.0, "rope.scaling.finetuned": False}
    assert not from_gguf(granite, "granite", still).turns


def test_gguf_files_of_arch_llama_with_experts_are_mixtral():
    experts = GGUF_LLAMA | {"expert_count": 8, "expert_used_count": 2}
    source = GGUF("llama", experts, {})
    assert architecture_of(source) == "llama+experts"
    assert family_for(source) is mixtral
    assert family_for(GGUF("llama", GGUF_LLAMA, {})) is llama


def test_plugins_add_families_and_unknown_architectures_are_named():
    other = type(llama)("other_family", "Another family.\n\nMore.")
    other.ARCHITECTURES = ("other",)
    source = GGUF("other", {}, {})
    with pytest.raises(UnsupportedError, match=r"'other' is not supported[\s\S]*--families`"):
        family_for(source)
    assert family_for(source, [other]) is other
    assert set(families([other])) - set(families()) == {"other"}
    info = describe_families([other])[-1]
    assert (info.name, info.architectures) == ("other_family", ("other",))
    assert info.summary == "Another family." and info.gguf == ("other",)


def test_gguf_files_of_names_that_only_folders_have_are_refused():
    with pytest.raises(UnsupportedError, match="GGUF files of the architecture 'mistral'"):
        family_for(GGUF("mistral", GGUF_LLAMA, {}))
    for info in describe_families():
        assert set(info.gguf) <= set(info.architectures)


@pytest.mark.parametrize("family", OWN)
def test_a_family_only_describes(family):
    """No weights, no arrays, no device: a family imports the IR and what describes models."""
    allowed = {
        "__future__", "collections.abc", "dataclasses", "functools", "math", "re", "statistics",
        "typing", "cortiq.errors", "cortiq.formats.sentence_settings",
        "cortiq.ir", "cortiq.ir.encoded", "cortiq.ir.encoders", "cortiq.ir.images",
        "cortiq.ir.layers", "cortiq.ir.ops", "cortiq.models", "cortiq.models.alibi",
        "cortiq.models.config", "cortiq.models.config_limits", "cortiq.models.config_notes",
        "cortiq.models.differential",
        "cortiq.models.encoder", "cortiq.models.formed_vectors",
        "cortiq.models.gguf_keys", "cortiq.models.hyper_connections", "cortiq.models.kimi_delta",
        "cortiq.models.layer_kinds", "cortiq.models.mla",
        "cortiq.models.names", "cortiq.models.ngram_hashes",
        "cortiq.models.parts", "cortiq.models.tensor_pieces", "cortiq.models.rope",
        "cortiq.numerics.contract", "cortiq.numerics.rope", "cortiq.numerics.rope_scaling",
        "cortiq.numerics.route", "cortiq.numerics.sinusoids",
    }  # fmt: skip
    allowed |= {f"cortiq.models.{name}" for name in (*OWN, "qwen4_exp_names")}
    tree = ast.parse(Path(import_module(f"cortiq.models.{family}").__file__).read_text())
    imports = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    imports |= {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    assert imports <= allowed


@pytest.mark.parametrize("name", [n for n, c in CONFIGS.items() if "model_type" in c])
def test_no_window_of_published_configurations_is_read_two_ways(name):
    """A window of 0 is none, as those who write it mean it, or refused with its name."""
    family = families()[CONFIGS[name]["model_type"]]
    if "sliding_window" not in {f.name for f in fields(family.Config)}:
        return
    given = {**CONFIGS[name], "sliding_window": 0}
    try:
        config = config_from_json(family.Config, family.KEYS, given, where="config.json")
        program = family.build(config, 64)
    except CortiqError as error:
        assert "sliding_window" in str(error)
        return
    verify(program)
    windows = {getattr(node.op, "window", None) for node in program.trunk.nodes}
    assert windows == {None}


@pytest.mark.parametrize("name", ["mini-qwen2", "mini-phi3", "mini-qwen3_moe", "mini-smollm3"])
def test_a_window_that_is_not_in_use_may_be_0(name):
    family = families()[CONFIGS[name]["model_type"]]
    known = {f.name for f in fields(family.Config)}
    off = {key: value for key, value in {"use_sliding_window": False}.items() if key in known}
    given = {k: v for k, v in CONFIGS[name].items() if k != "layer_types"}
    given = {**given, **off, "sliding_window": 0}
    config = config_from_json(family.Config, family.KEYS, given, where="config.json")
    verify(family.build(config, 64))
