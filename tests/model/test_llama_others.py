"""llama.cpp's logits of GGUF files that are not written from a declared family."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("transformers")
pytest.importorskip("gguf")

import kimi_k3_folders
import numpy as np
import test_gguf_models
import test_kimi_k3
import test_rwkv7
from checkpoints import write
from family_harness import logits_of
from gguf_files import emit, write_gguf
from llama_peer import BOUND, llama_rows, samples, why_not, write_sample
from test_looped import TOKENS, looped_file
from test_looped import written as looped_folder  # noqa: F401
from test_qwen4_exp import model as qwen4_file  # noqa: F401
from test_renamed_families import FILES, GLM, written  # noqa: F401

from cortiq.formats.checkpoint import open_checkpoint

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def llama_cpp():
    """Skip without llama.cpp, and say how to have it."""
    if reason := why_not():
        pytest.skip(reason)


def difference(path, ids):
    """The greatest difference of llama.cpp's logits and ours, in standard deviations."""
    logits = logits_of(open_checkpoint(path), ids)
    found, said = llama_rows(path, ids)
    assert found is not None, said
    return np.abs(found - logits).max() / logits.std()


@pytest.mark.parametrize(("name", "how"), FILES, ids=str)
def test_renamed_families(name, how, written, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setitem(GLM, "hidden_size", 48)  # as wide as the heads are together
    model, path = written(name, "odd"), tmp_path / "model.gguf"
    write_gguf(path, model.folder, how, lambda values, _: values.setdefault("vocab_size", 96))
    assert difference(path, model.tokens) < BOUND


@pytest.mark.parametrize("name", ["mixtral", "lfm2"])
def test_first_families(name, tmp_path):
    model = write(test_gguf_models.BY_NAME[name], tmp_path / "folder")
    path = tmp_path / "model.gguf"
    test_gguf_models.write_gguf(
        path, model.folder, lambda values, _: values.setdefault("vocab_size", 96)
    )
    assert difference(path, model.tokens) < BOUND


SECTIONS = {"rope.dimension_sections": [2, 2, 1, 0]}
SEEING = {
    "qwen2vl": ("qwen2", SECTIONS, {"rms_norm_eps": 1e-9}),  # it reads no eps, but takes 0
    "qwen3vl": ("qwen3", {**SECTIONS, "n_deepstack_layers": 0}, {}),
    "qwen3vlmoe": ("qwen3moe", {**SECTIONS, "n_deepstack_layers": 0}, {}),
}  # fmt: skip


@pytest.mark.parametrize("architecture", SEEING)
def test_text_models_of_those_that_see(architecture, tmp_path):
    base, values, options = SEEING[architecture]
    sample = next(one for one in samples() if str(one.how) == base)
    peer = replace(sample.peer, options={**sample.peer.options, **options},
                   values={**sample.peer.values, **values})  # fmt: skip
    how = replace(sample.how, architecture=architecture, names=base)
    assert difference(*write_sample(replace(sample, how=how, peer=peer), tmp_path)) < BOUND


@pytest.mark.parametrize("geometry", ["published", "odd"])
def test_attention_residuals(geometry, tmp_path):
    """Norms of latents take the eps of the others."""
    config = test_kimi_k3.options(test_kimi_k3.GEOMETRIES[geometry] | {"rms_norm_eps": 1e-6})
    path = tmp_path / "k3.gguf"
    kimi_k3_folders.write_gguf(path, config, kimi_k3_folders.tensors(config))
    assert difference(path, test_kimi_k3.TOKENS) < 10 * BOUND


def test_channel_decays(tmp_path, monkeypatch):
    """Heads of 64 elements: llama.cpp computes no smaller ones."""
    config = test_rwkv7.CONFIG | {"head_dim": 64, "hidden_size": 128}
    for name, value in (("WIDTH", 128), ("HEADS", 2), ("CONFIG", config)):
        monkeypatch.setattr(test_rwkv7, name, value)
    path, held = tmp_path / "rwkv7.gguf", test_rwkv7.gguf_tensors(test_rwkv7.tensors())
    emit(path, "rwkv7", test_rwkv7.gguf_values(config) | {"vocab_size": test_rwkv7.VOCAB}, held)
    assert difference(path, test_rwkv7.TOKENS) < BOUND


def test_looped_layers(looped_folder, tmp_path):  # noqa: F811
    folder, config, _ = looped_folder
    if config.get("attention_bias"):
        pytest.skip("llama.cpp has no biases there")
    looped_file(tmp_path / "model.gguf", folder, config)
    assert difference(tmp_path / "model.gguf", np.array(TOKENS)) < BOUND


def test_gated_streams(qwen4_file):  # noqa: F811
    """As many keys as a query may have: llama.cpp fills up a list that has fewer."""
    folder, _, _, path = qwen4_file
    assert difference(path, folder.tokens[:8]) < BOUND
