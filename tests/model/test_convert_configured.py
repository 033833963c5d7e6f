"""Converted models keep the tensors that a configuration is read from: factors of RoPE."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")
pytest.importorskip("gguf")

from checkpoints import case, rope, write
from family_harness import distance, logits_of
from gguf_files import GGUF, write_gguf

from cortiq.convert.run import convert_model
from cortiq.formats.checkpoint import open_checkpoint

TURNED = case("llama-llama3", "LlamaConfig", rope(
    "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
    original_max_position_embeddings=48,
))  # fmt: skip


@pytest.mark.parametrize("end", ["", ".gguf"])
def test_factors_of_a_gguf_file_are_in_what_is_made_of_it(end, tmp_path):
    model = write(TURNED, tmp_path / "folder")
    write_gguf(tmp_path / "old.gguf", model.folder, GGUF("llama", permuted=True))
    assert "rope_freqs.weight" in open_checkpoint(tmp_path / "old.gguf")
    new = tmp_path / f"new{end}"
    convert_model(str(tmp_path / "old.gguf"), new, recipe="keep")
    ids = model.tokens[:64]
    assert distance(logits_of(open_checkpoint(new), ids), model.logits[:64]) < 1e-5
