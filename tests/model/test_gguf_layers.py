"""What GGUF files of Ling 3, DeepSeek V4 and MiniMax-01 say of their layers, and a reranker's."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")
pytest.importorskip("gguf")

import numpy as np
from checkpoints import write
from family_harness import declared, logits_of
from gguf_files import write_gguf

from cortiq.errors import CortiqError
from cortiq.formats.checkpoint import open_checkpoint

FAMILIES = {str(how): (family, how) for family in declared() for how in family.gguf}
LINEAR = "attention.recurrent_layers"


@pytest.fixture(scope="module")
def file_of(tmp_path_factory):
    """Writes a family's file with edits; the folder is written once."""
    folders = {}

    def make(architecture, change=None):
        family, how = FAMILIES[architecture]
        if architecture not in folders:
            case = family.case(how.geometries[0])
            folders[architecture] = write(case, tmp_path_factory.mktemp(architecture))
        model = folders[architecture]
        path = model.folder / "edited.gguf"
        write_gguf(path, model.folder, how, change)
        return open_checkpoint(path), model.tokens

    return make


def drafted(values, tensors):
    """A layer that drafts, as the converter leaves it in: one more block, and one more entry."""
    last = values["block_count"]
    values |= {"block_count": last + 1, "nextn_predict_layers": 1}
    values["attention.head_count_kv"] = [*values["attention.head_count_kv"], 1]
    more = {n.replace(f"blk.{last - 1}.", f"blk.{last}."): t for n, t in tensors.items()
            if n.startswith(f"blk.{last - 1}.")}  # fmt: skip
    tensors |= more | {f"blk.{last}.nextn.eh_proj.weight": np.ones((4, 8), np.float32)}


def every_second(values, tensors):
    """The interval of attention in place of the list."""
    del values[LINEAR]
    values["full_attention_interval"] = 2


def reranking(values, tensors):
    """Two rows of the head once more, as Qwen3-Reranker's files have them."""
    values |= {"pooling_type": 4, "classifier.output_labels": ["yes", "no"]}
    tensors["cls.output.weight"] = tensors["output.weight"][[7, 9]]


@pytest.mark.parametrize(
    ("architecture", "change"),
    [("bailingmoe3", drafted), ("minimax-01", every_second), ("qwen3", reranking)],
)
def test_other_ways_to_say_it_are_the_same_model(architecture, change, file_of):
    wanted = logits_of(*file_of(architecture))
    assert np.array_equal(logits_of(*file_of(architecture, change)), wanted)


@pytest.mark.parametrize(
    ("architecture", "values", "words"),
    [
        ("bailingmoe3", {"kda.safe_gate": False}, "safe_gate"),
        ("bailingmoe3", {"attention.value_length": 7}, "linear_head_dim"),
        ("bailingmoe3", {"attention.head_count_kv": [0]}, "head_count_kv has 1"),
        ("deepseek4", {"swiglu_clamp_exp": [10.0, 9.0, 10.0]}, "bounded by"),
        ("deepseek4", {"swiglu_clamp_exp": [0.0] * 3, "swiglu_clamp_shexp": None}, "bounded by"),
        ("deepseek4", {"swiglu_clamp_exp": [10.0]}, "swiglu_clamp_exp has 1"),
        ("deepseek4", {"embedding_length_out": 7}, "must be 160"),
        ("deepseek4", {"expert_gating_func": 2}, "expert_gating_func"),
        ("deepseek4", {"attention.compress_ratios": [0, 4, 5]}, "a ratio of 5"),
        ("minimax-01", {LINEAR: [True]}, "recurrent_layers has 1"),
        ("minimax-01", {LINEAR: [False, True]}, "blk.0"),
    ],
    ids=str,
)
def test_what_is_not_implemented_or_contradicts_is_refused(architecture, values, words, file_of):
    checkpoint, tokens = file_of(architecture, lambda given, _: given.update(values))
    with pytest.raises(CortiqError, match=words):
        logits_of(checkpoint, tokens)
