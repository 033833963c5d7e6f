"""Families against transformers, in float64: every option of the configurations, and it bites."""

from __future__ import annotations

import dataclasses

import pytest

pytest.importorskip("transformers")

import numpy as np
from checkpoints import CASES, write

from cortiq.errors import CortiqError, FormatError, UnsupportedError
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.models import gemma3, lfm2, llama, load_program, mixtral
from cortiq_reference.ideal import evaluate

TOLERANCE = 1e-5
BITES = 30 * TOLERANCE
BY_NAME = {case.name: case for case in CASES}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Checkpoints by name of the case, each written once."""
    known = {}

    def get(name):
        if name not in known:
            known[name] = write(BY_NAME[name], tmp_path_factory.mktemp(name))
        return known[name]

    return get


def logits_of(checkpoint, tokens, context=None):
    loaded = load_program(checkpoint, context=context, weight_format="f32")
    return evaluate(loaded.program, loaded.weights, tokens, ["logits"])["logits"]


def changed(checkpoint, changes):
    """The checkpoint with keys of its config replaced (`...` deletes one; dots reach inside)."""
    config = dict(checkpoint.config)
    for path, value in changes.items():
        *outer, key = path.split(".")
        inner = config
        for name in outer:
            inner[name] = dict(inner[name])
            inner = inner[name]
        if value is ...:
            del inner[key]
        else:
            inner[key] = value
    return dataclasses.replace(checkpoint, config=config)


def distance(a, b):
    """Largest difference of two logits, relative to the largest logit, over all positions."""
    return float(np.abs(a - b).max() / np.abs(b).max())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_graph_in_float64_equals_transformers_in_double(case, written):
    model = written(case.name)
    logits = logits_of(open_checkpoint(model.folder), model.tokens, case.context)
    assert logits.shape == model.logits.shape
    assert distance(logits, model.logits) < TOLERANCE


ROPE = "rope_parameters"
DYNAMIC = {
    f"{ROPE}.rope_type": "dynamic", f"{ROPE}.factor": 2.0,
    f"{ROPE}.original_max_position_embeddings": 16,
}  # fmt: skip
"""In a context longer than that, frequencies follow from the length."""
FULL = f"{ROPE}.full_attention"
CHANGES = [
    ("llama", {"rms_norm_eps": 0.021}),
    ("llama", {"hidden_act": "gelu_pytorch_tanh"}),
    ("llama", {f"{ROPE}.rope_theta": 1030.0}),
    ("llama", {f"{ROPE}.partial_rotary_factor": 0.8}),
    ("llama-linear", {f"{ROPE}.factor": 2.57}),
    ("llama-llama3", {f"{ROPE}.factor": 8.3}),
    ("llama-llama3", {f"{ROPE}.low_freq_factor": 1.05}),
    ("llama-llama3", {f"{ROPE}.high_freq_factor": 4.2}),
    ("llama-llama3", {f"{ROPE}.original_max_position_embeddings": 50}),
    ("llama-yarn", {f"{ROPE}.factor": 4.1}),
    ("llama-yarn-options", {f"{ROPE}.original_max_position_embeddings": 67}),
    ("llama-yarn-options", {f"{ROPE}.beta_fast": 6.3}),
    ("llama-yarn-options", {f"{ROPE}.beta_slow": 0.52}),
    ("llama-yarn-options", {f"{ROPE}.mscale": 1.26}),
    ("llama-yarn-options", {f"{ROPE}.mscale_all_dim": 0.84}),
    ("llama-yarn-options", {f"{ROPE}.truncate": True}),
    ("llama-yarn-attention-factor", {f"{ROPE}.attention_factor": 1.33}),
    ("llama-longrope-long", {f"{ROPE}.long_factor": [1.0, 1.55, 2.0, 2.5, 3.0]}),
    ("llama-longrope-long", {"max_position_embeddings": 1100}),
    ("llama-longrope-long", {f"{ROPE}.factor": 30.0}),
    ("llama-longrope-long", {f"{ROPE}.attention_factor": 1.4}),
    ("llama-longrope-short", {f"{ROPE}.short_factor": [1.0, 1.06, 1.06, 1.09, 1.12]}),
    ("llama-longrope-short", {f"{ROPE}.original_max_position_embeddings": 255}),
    ("mistral", {"sliding_window": 25}),
    ("mistral", {"sliding_window": None}),
    ("gemma3", {"rms_norm_eps": 0.021}),
    ("gemma3", {"hidden_activation": "silu"}),
    ("gemma3", {"query_pre_attn_scalar": 21}),
    ("gemma3", {"sliding_window": 25}),
    ("gemma3", {"layer_types": ["sliding_attention"] * 3 + ["full_attention"]}),
    ("gemma3", {f"{FULL}.factor": 8.4}),
    ("gemma3", {f"{FULL}.rope_theta": 2100.0}),
    ("gemma3", {f"{ROPE}.sliding_attention.rope_theta": 312.0}),
    (
        "gemma3",
        {f"{FULL}.rope_type": "default", f"{FULL}.factor": ...},
    ),
    ("gemma3-pattern", {"layer_types": ..., "_sliding_window_pattern": 5}),
    ("gemma3-pattern", {ROPE: ..., "rope_theta": 1e6, "rope_local_base_freq": 9700.0}),
    ("gemma3-attention-cap", {"attn_logit_softcapping": 2.1}),
    ("gemma3-attention-cap", {"attn_logit_softcapping": None}),
    ("gemma3-final-cap", {"final_logit_softcapping": 3.1}),
    ("mixtral", {"rms_norm_eps": 0.021}),
    ("mixtral", {"hidden_act": "relu"}),
    ("mixtral", {"num_experts_per_tok": 3}),
    ("mixtral", {f"{ROPE}.rope_theta": 1.05e6}),
    ("mixtral-window", {"sliding_window": 23}),
    ("lfm2", {"norm_eps": 0.021}),
    ("lfm2", {f"{ROPE}.rope_theta": 1.05e6}),
]
"""Options that leave every tensor's shape alone, changed by a few percent or flipped."""


@pytest.mark.parametrize(
    ("name", "changes"), CHANGES, ids=lambda x: x if isinstance(x, str) else ""
)
def test_a_changed_option_moves_the_logits(name, changes, written):
    model, context = written(name), BY_NAME[name].context
    other = changed(open_checkpoint(model.folder), changes)
    assert distance(logits_of(other, model.tokens, context), model.logits) >= BITES


STRUCTURAL = [
    ("llama", "vocab_size", 97),
    ("llama", "hidden_size", 44),
    ("llama", "intermediate_size", 73),
    ("llama", "num_hidden_layers", 1),
    ("llama", "num_hidden_layers", 3),
    ("llama", "num_attention_heads", 2),
    ("llama", "num_key_value_heads", 1),
    ("llama", "head_dim", 12),
    ("llama", "attention_bias", True),
    ("llama-biased", "attention_bias", False),
    ("llama", "mlp_bias", True),
    ("llama-biased", "mlp_bias", False),
    ("llama", "tie_word_embeddings", True),
    ("llama-tied", "tie_word_embeddings", False),
    ("gemma3-untied-biased", "tie_word_embeddings", True),
    ("mixtral", "tie_word_embeddings", True),
    ("gemma3", "attention_bias", True),
    ("mixtral", "num_local_experts", 4),
    ("mixtral", "num_local_experts", 6),
    ("lfm2", "conv_bias", True),
    ("lfm2", "conv_L_cache", 4),
    ("lfm2", "block_multiple_of", 25),
    ("lfm2", "block_ffn_dim_multiplier", 1.4),
    ("lfm2", "block_auto_adjust_ff_dim", False),
    ("lfm2", "layer_types", ["conv", "conv", "full_attention"]),
    ("lfm2-indices", "full_attn_idxs", [0, 1]),
]
"""Options that change a tensor's shape or which tensors there are."""


@pytest.mark.parametrize(("name", "key", "value"), STRUCTURAL)
def test_an_option_that_contradicts_the_tensors_is_refused(name, key, value, written):
    changes = {key: value} | ({"layer_types": ...} if key == "full_attn_idxs" else {})
    with pytest.raises(FormatError, match=r"(is missing|should be|is not used|differs)"):
        load_program(changed(open_checkpoint(written(name).folder), changes))


FAMILIES = {
    ("llama", "mistral"): llama,
    ("gemma3",): gemma3,
    ("mixtral",): mixtral,
    ("lfm2",): lfm2,
}
"""Families by how the names of their cases start."""
COVERED_ELSEWHERE = {
    "source", "kv_heads_of_layers",  # GGUF only: test_gguf_models.py
    "sliding_window_pattern",  # `_sliding_window_pattern` above
    "use_bidirectional_attention",  # test_sentence_modules.py
}  # fmt: skip
SHARED = {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "head_dim",
          "num_attention_heads", "num_key_value_heads", "rope_parameters", "tie_word_embeddings",
          "max_position_embeddings"}  # fmt: skip


@pytest.mark.parametrize("prefixes", FAMILIES)
def test_every_field_of_every_config_is_seen_to_matter(prefixes):
    paths = {path for name, c in CHANGES if name.startswith(prefixes) for path in c}
    keys = {path.split(".")[0] for path in paths}
    keys |= {key for name, key, _ in STRUCTURAL if name.startswith(prefixes)}
    fields = {f.name for f in dataclasses.fields(FAMILIES[prefixes].Config)}
    assert fields - keys - COVERED_ELSEWHERE - SHARED == set()


def test_transformers_4_and_5_forms_of_rope_give_one_config(written):
    checkpoint = open_checkpoint(written("llama-llama3").folder)
    rope = dict(checkpoint.config[ROPE])
    theta, kind = rope.pop("rope_theta"), rope.pop("rope_type")
    for name in ("type", "rope_type"):
        old = {ROPE: ..., "rope_theta": theta, "rope_scaling": {name: kind, **rope}}
        config = load_program(changed(checkpoint, old)).config
        assert config == load_program(checkpoint).config


def test_dynamic_scaling_changes_nothing_within_the_context_of_the_model(written):
    checkpoint = open_checkpoint(written("llama").folder)
    kind = {f"{ROPE}.rope_type": "dynamic", f"{ROPE}.factor": 2.0}
    assert load_program(changed(checkpoint, kind)).program == load_program(checkpoint).program


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"attention_multiplier": 2.0, "layernorm_mode": "x"},
            "attention_multiplier, layernorm_mode",
        ),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention = True"),
        ({"hidden_act": "mish"}, "'mish'"),
        (DYNAMIC, "dynamic NTK"),
        ({f"{ROPE}.rope_type": "spiral"}, "spiral"),
        ({f"{ROPE}.temperature": 2.0}, "temperature"),
        ({"model_type": "perceptron"}, "perceptron"),
    ],
)
def test_what_is_not_supported_is_named(changes, words, written):
    checkpoint = changed(open_checkpoint(written("llama").folder), changes)
    checkpoint.architecture = checkpoint.config["model_type"]
    with pytest.raises(UnsupportedError, match=words):
        load_program(checkpoint)


@pytest.mark.parametrize(
    ("key", "value"),
    [("hidden_size", "40"), ("hidden_size", 40.0), ("hidden_size", -40), ("hidden_size", True),
     ("rms_norm_eps", "small"), ("rms_norm_eps", float("nan")), ("tie_word_embeddings", 1),
     ("hidden_act", 3), ("hidden_size", ...), ("num_hidden_layers", 10**9), ("rope_theta", 7.0)],
)  # fmt: skip
def test_wrong_types_and_contradictions_are_refused_by_name(key, value, written):
    checkpoint = changed(open_checkpoint(written("llama").folder), {})
    checkpoint.config[key] = value
    if value is ...:
        del checkpoint.config[key]
    with pytest.raises(CortiqError, match=key):
        load_program(checkpoint)


def test_all_tensor_problems_are_listed_at_once(written):
    checkpoint = changed(
        open_checkpoint(written("llama").folder), {"mlp_bias": True, "head_dim": 12}
    )
    with pytest.raises(FormatError) as error:
        load_program(checkpoint)
    text = str(error.value)
    assert "model.layers.1.mlp.up_proj.bias [72] is missing" in text
    assert "model.layers.0.self_attn.q_proj.weight is [40, 40], should be [48, 40]" in text


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3", "mixtral", "lfm2"])
def test_attention_scores_are_of_size_one(name, written):
    """Scores much smaller would hide errors of queries and keys from the logits."""
    model = written(name)
    loaded = load_program(open_checkpoint(model.folder), weight_format="f32")
    layer = next(n.name for n in loaded.program.trunk.nodes if n.op.kind == "Attention")
    op = next(n.op for n in loaded.program.trunk.nodes if n.name == layer)
    wants = [f"{layer}.q.rope", f"{layer}.k.rope"]
    q, k = evaluate(loaded.program, loaded.weights, model.tokens, wants).values()
    k = np.repeat(k, op.heads // op.kv_heads, axis=1)
    scores = np.einsum("qhd,khd->hqk", q, k) * (op.scale or op.head_dim**-0.5)
    assert 0.5 < scores.std() < 2
