"""Mistral Large 4's whole folders under published names, and the factors of its frequencies."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("transformers")

import numpy as np
import torch
import transformers
from checkpoints import draw_weights
from family_harness import changed, distance, logits_of
from safetensors.numpy import load_file, save_file

from cortiq.errors import FormatError, UnsupportedError
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.models import load_program
from cortiq.models.mistral_large4 import ALPHA

TEXT = {
    "vocab_size": 96, "hidden_size": 48, "intermediate_size": 64, "moe_intermediate_size": 24,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "kv_lora_rank": 16, "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 6, "v_head_dim": 12, "index_n_heads": 4, "index_head_dim": 8,
    "index_topk": 7, "max_position_embeddings": 256, "no_rope_layers": [1, 0, 1, 0],
    "kv_source_layers": [0, 1, 0, 1], "indexer_types": ["full", "shared", "shared", "full"],
}  # fmt: skip
SIGHT = {
    "model_type": "pixtral", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
    "num_attention_heads": 2, "patch_size": 4, "image_size": 16,
}  # fmt: skip
IDS = [int(n) for n in np.random.default_rng(4).integers(0, 96, 20)]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder as it is published, and the logits of its text model in double."""
    folder = tmp_path_factory.mktemp("large")
    config = transformers.MistralLarge4Config(text_config=TEXT, vision_config=SIGHT)
    model = transformers.MistralLarge4ForConditionalGeneration._from_config(
        config, experts_implementation="eager"
    ).eval()
    draw_weights(model)
    model.save_pretrained(folder)
    with torch.no_grad():
        logits = model.double()(torch.tensor([IDS]), use_cache=False).logits[0].numpy()
    return folder, logits


def test_a_published_folder_has_the_logits_of_transformers(written):
    folder, logits = written
    names = set(load_file(folder / "model.safetensors"))
    assert {"lerope.alpha", "tok_embeddings.weight", "output.weight"} < names
    assert {"layers.0.attention.wkv_a_with_mqa.weight", "layers.1.experts.3.w2.weight"} < names
    assert distance(logits_of(open_checkpoint(folder), IDS), logits) < 1e-5


def test_every_layer_reads_the_rows_of_its_source_and_rotates_as_it_does(written):
    nodes = load_program(open_checkpoint(written[0])).program.trunk.nodes
    layers = [node for node in nodes if type(node.op).__name__ == "LatentAttention"]
    assert [node.slots["kv"] for node in layers] == [f"layers.{n}.kv" for n in (0, 1, 0, 1)]
    assert [node.op.shares_kv for node in layers] == [False, False, True, True]
    assert [(node.op.rope is None, node.op.rope_dim) for node in layers] == [
        (False, 6), (True, 0), (False, 6), (True, 0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kv_source_layers": [0, 0, 0, 1]}, "layer 1 reads the rows of layer 0"),
        ({"kv_source_layers": [0, 1, 3, 1]}, "layer 2 reads the rows of layer 3"),
        ({"kv_source_layers": [0, 1, 0]}, "3 entries for 4 layers"),
        ({"no_rope_layers": [1, 0, 1, 2]}, "no_rope_layers has 2"),
    ],
)
def test_sources_that_no_layer_can_have_are_refused(changes, words, written):
    with pytest.raises(FormatError, match=re.escape(words)):
        load_program(changed(open_checkpoint(written[0]), changes))


@pytest.mark.parametrize(
    ("alpha", "error", "words"),
    [
        (None, FormatError, ALPHA),
        (np.zeros((3, 1), np.float32), FormatError, "not a short vector"),
        (np.array([0, np.nan, 0], np.float32), FormatError, "nan"),
        (np.zeros(4, np.float32), UnsupportedError, "4 frequency factors for 3"),
    ],
)
def test_factors_that_are_absent_or_of_another_number_are_refused(
    alpha, error, words, written, tmp_path
):
    for file in written[0].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["lerope.alpha"]
    more = {} if alpha is None else {"lerope.alpha": alpha}
    save_file(tensors | more, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(error, match=words) as caught:
        load_program(open_checkpoint(tmp_path))
    assert str(tmp_path) in str(caught.value)
