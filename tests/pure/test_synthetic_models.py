"""Models by formula: names and options, the same bits every time, sizes that a test can trust."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from cortiq.errors import ModelNotFoundError, RequestError
from cortiq.models import load_program
from cortiq.models.fixtures import WEIGHTS, mimo_weight, pattern
from cortiq.models.registry import describe_families
from cortiq.models.synthetic import CONFIGS, FIXTURES, open_synthetic
from cortiq.numerics.layouts import decode, floats
from cortiq_reference.ideal import dequantise, evaluate

TINY = [name for name in [*CONFIGS, *FIXTURES] if name.startswith("tiny")]
BY_FORMULA = [name for name in TINY if name not in WEIGHTS]


def load(name):
    return load_program(open_synthetic(f"synthetic:{name}"))


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("tiny-llama-2", ModelNotFoundError, "such as tiny-llama, tiny-lfm2"),
        ("tiny-llama?sed=3", RequestError, "seed and format only"),
        ("tiny-llama?seed=-1", RequestError, "'-1'"),
        ("tiny-llama?seed=18446744073709551616", RequestError, "2\\^64"),
        ("tiny-llama?format=w9", RequestError, "w9"),
        ("tiny-llama?format=F16", RequestError, "F16"),
    ],
)
def test_a_name_that_means_nothing_is_refused(name, error, words):
    with pytest.raises(error, match=words):
        open_synthetic(f"synthetic:{name}")


OF_KNOWN_PARTS = {
    "gemma", "olmo3", "seed_oss", "arcee", "ernie4_5", "exaone4", "cohere2", "glm4", "helium",
    "stablelm", "olmoe", "flex_olmo", "granitemoe", "dots1", "ernie4_5_moe", "hunyuan_v1_moe",
    "glm4_moe_lite", "exaone_moe", "bamba", "opt", "falcon",
    "internlm2", "minicpm", "bailing_moe_v2", "afmoe", "lfm3", "hy_v3", "cwm", "vaultgemma",
    "solar_open", "youtu", "ministral", "granite_swa", "nanochat", "hyperclovax",
    "exaone", "gpt_bigcode", "gpt_neo", "mllama", "granitemoe_swa", "flint", "sarvam_mla",
    "openai_gpt", "codegen", "biogpt", "xglm", "modernbert_decoder", "aria", "lara_mini",
    "mellum", "sarvam_moe", "cohere2_moe",
}  # fmt: skip
"""Families whose layers are those of others, with other norms, windows or counts."""
ENCODERS = {"bert", "modernbert", "nomic_bert", "whisper", "llama_bidirec"}
"""Families without logits or with an encoder, of which the kit's streams cannot be made:
tests/model/test_encoders.py, test_sentence_modules.py, test_whisper.py."""


def test_every_family_with_parts_of_its_own_has_a_model_by_formula():
    """The conformance kit covers a family as soon as it is in the registry."""
    kinds = {str(config["model_type"]) for config in CONFIGS.values()}
    missing = {f.name for f in describe_families() if not kinds & set(f.architectures)}
    assert missing == OF_KNOWN_PARTS | ENCODERS


@pytest.mark.parametrize("name", TINY)
def test_a_model_is_the_same_every_time_and_another_with_another_seed(name):
    once, again, other = (load(f"{name}?seed={seed}") for seed in (5, 5, 6))
    for key, weight in once.weights.items():
        for part, values in weight.parts.items():
            assert np.array_equal(values, again.weights[key].parts[part])
    assert once.checkpoint.model_hash() == again.checkpoint.model_hash()
    assert once.checkpoint.model_hash() != other.checkpoint.model_hash()
    different = [
        key for key, w in once.weights.items()
        if any(not np.array_equal(v, other.weights[key].parts[p]) for p, v in w.parts.items())
    ]  # fmt: skip
    assert len(different) == (0 if name in WEIGHTS else len(once.weights))


@pytest.mark.parametrize("name", TINY)
def test_slices_of_a_weight_are_the_rows_of_the_whole(name):
    model = load(name)
    for key, weight in model.weights.items():
        if weight.layout.kind == "float" or weight.shape[0] < 4:
            continue
        assert np.array_equal(decode(weight.rows(1, 3)).codes, decode(weight).codes[1:3]), key


@pytest.mark.parametrize("name", BY_FORMULA)
def test_rows_of_the_residual_stream_stay_near_one(name):
    model = load(name)
    last = model.program.facts["layers"] - 1
    tokens = [(7 * i * i + 3 * i) % 320 for i in range(60)]
    wants = ["embed", f"layers.{last}.out", "logits"]
    values = evaluate(model.program, model.weights, tokens, wants)
    assert 0.7 < values["embed"].std() < 1.5
    assert 0.7 < values[wants[1]].std() < 6
    assert 0.7 < values["logits"].std() < 20


def test_formats_of_gguf_are_offered_too():
    model = load("tiny-llama?format=Q4_0")
    assert model.weights["model.layers.0.mlp.up_proj.weight"].layout.name == "Q4_0"


def test_a_large_model_opens_without_making_its_weights():
    model = load("llama3-8b")
    assert model.program.facts["layers"] == 32
    elements = sum(int(np.prod(w.shape)) for w in model.weights.values())
    assert 8.0e9 < elements < 8.1e9
    assert model.program.weights["lm_head.weight"].layout == "w8"


def test_the_pattern_of_the_fixtures_is_its_formula():
    for salt in (1, 44, 200):
        values = pattern(500, salt)
        for i in (0, 1, 96, 97, 499):
            exact = (Fraction((31 * i + 17 * salt + 7) % 97, 97) - Fraction(1, 2)) * Fraction(2, 5)
            assert abs(Fraction(float(values[i])) - exact) < Fraction(1, 2**24)
        assert np.array_equal(values[:97], values[97:194])


def test_the_mimo_fixture_has_its_geometry_salts_and_sinks():
    model = load("tiny-mimo?format=f32")
    shapes = {name: spec.shape for name, spec in model.program.weights.items()}
    assert [shapes[f"model.layers.{n}.self_attn.v_proj.weight"] for n in range(4)] == [
        (4, 16), (8, 16), (8, 16), (4, 16),
    ]  # fmt: skip
    assert shapes["model.layers.0.self_attn.o_proj.weight"] == (16, 16)
    sinks = [floats(model.weights[f"model.layers.{n}.self_attn.sinks"])[0] for n in (1, 2)]
    assert [list(s) for s in sinks] == [[0.5, -1, 1.5, 0], [-0.25, 2, 0.75, -1.5]]
    experts = dequantise(model.weights["model.layers.2.block_sparse_moe.experts.w3.weight"])
    assert np.array_equal(experts[8:16].ravel(), pattern(8 * 16, 70 + 20 + 3 + 1))
    assert np.array_equal(
        dequantise(mimo_weight("model.layers.3.self_attn.k_proj.weight", (8, 16), "f32")).ravel(),
        pattern(128, 32),
    )


def test_the_draft_head_shares_the_trunks_table_and_head_but_not_its_rows():
    program = load("tiny-mtp").program
    used = {
        name: {w for n in graph.nodes for w in n.weights.values()}
        for name, graph in program.graphs.items()
    }
    assert used["trunk"] & used["mtp"] == {"model.embed_tokens.weight", "lm_head.weight"}
    assert program.graphs["mtp"].written_slots() == ["mtp.kv"]
    assert "mtp.kv" not in program.trunk.slots()
