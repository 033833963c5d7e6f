"""Draft heads of Hugging Face folders: found, bound, and the same as transformers' layers make."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("transformers")

import numpy as np
import safetensors.torch
import torch
from family_harness import distance
from head_folders import FILES, Folder

from cortiq.errors import FormatError, RequestError, UnsupportedError
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.ir import primitives_of
from cortiq.model.source import open_sidecar
from cortiq.models import load_program
from cortiq_reference.ideal import dequantise, evaluate


@pytest.fixture(scope="module", params=FILES)
def written(request, tmp_path_factory):
    return Folder(request.param, tmp_path_factory.mktemp(request.param))


def opened(written, heads="auto"):
    checkpoint = open_checkpoint(written.folder)
    return load_program(checkpoint, heads=heads, weight_format="f32")


def test_the_head_of_a_folder_is_found_and_is_what_transformers_makes_of_it(written):
    loaded = opened(written)
    head = loaded.program.facts["draft_head"]
    assert (head.style, head.source) == (written.style, written.source)
    assert len(head.entries) == len(written.layers)
    ids = np.random.default_rng(3).integers(0, 96, 24)
    values = evaluate(loaded.program, loaded.weights, ids, [head.source])
    hidden = values[head.source]
    for k, entry in enumerate(head.entries):
        rows = len(ids) - 1 - k
        graph = primitives_of(loaded.program).graphs[entry]
        given = {"recalled": hidden[:rows].reshape(-1, *graph.values["recalled"].shape)}
        tokens, wants = ids[k + 1 :], ["logits", f"{entry}.out", head.output(k)]
        ours = evaluate(loaded.program, loaded.weights, tokens, wants, entry, given)
        with torch.no_grad():
            out, logits = written.module(k, tokens, hidden[:rows])
        assert distance(ours[f"{entry}.out"], out) < 1e-5
        assert distance(ours["logits"], logits) < 1e-5
        if head.style == "cascade":
            hidden = ours[head.output(k)]


def test_the_trunk_is_the_same_with_and_without(written):
    bare, headed = opened(written, "off"), opened(written)
    ids = [5, 17, 40, 3, 88]
    one, two = (evaluate(p.program, p.weights, ids, ["logits"])["logits"] for p in (bare, headed))
    assert (one == two).all()
    assert bare.program.weights.keys() < headed.program.weights.keys()
    assert set(bare.program.graphs) == {"trunk"}


def test_a_head_that_is_not_there_is_said(written):
    wanted = "mtp" if written.style == "stack" else "mimo"
    with pytest.raises(RequestError, match=f"the model has no draft head '{wanted}'"):
        opened(written, wanted)


def test_a_block_that_is_no_layer_of_the_model_is_said(written):
    tensors = dict(written.tensors)
    gone = f"{written.layers[-1]}.input_layernorm.weight"
    path = written.folder / "model.safetensors"
    safetensors.torch.save_file({n: t for n, t in tensors.items() if n != gone}, path)
    try:
        with pytest.raises(UnsupportedError, match="is like no layer of this model") as raised:
            opened(written)
        assert "input_layernorm" in str(raised.value)
    finally:
        safetensors.torch.save_file(tensors, path)


@pytest.fixture
def beside(written, tmp_path):
    """The model without its head, and beside it a folder with the head."""
    main, side = tmp_path / "model", tmp_path / "model.mtp"
    of_head = {n for n in written.tensors if any(n.startswith(x) for x in written.layers)}
    of_head |= {f"{name}.weight" for k in range(len(written.layers)) for name in
                written.tensors_of(k)}  # fmt: skip
    config = json.loads((written.folder / "config.json").read_text())
    for folder, wanted in ((main, False), (side, True)):
        folder.mkdir()
        kept = {n: t for n, t in written.tensors.items() if (n in of_head) == wanted}
        safetensors.torch.save_file(kept, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(config))
    return main, side, config


def loaded_beside(folder, heads="auto"):
    checkpoint = open_checkpoint(folder)
    side = open_sidecar(checkpoint, heads)
    return load_program(checkpoint, heads=heads, weight_format="f32", sidecar=side)


def test_a_head_beside_the_model_is_the_head_inside_it(written, beside):
    main, _, _ = beside
    inside, outside = opened(written), loaded_beside(main)
    assert inside.program == outside.program
    name = next(n for n in inside.weights if n.endswith("eh_proj.weight") or n == "mtp.fc.weight")
    one, two = (dequantise(p.weights[name]) for p in (inside, outside))
    assert (one == two).all()
    assert set(loaded_beside(main, "off").program.graphs) == {"trunk"}


@pytest.mark.parametrize(
    "change", [{"vocab_size": 97}, {"hidden_size": 64}, {"num_attention_heads": 8},
               {"head_dim": 24}, {"model_type": "llama"}]
)  # fmt: skip
def test_a_head_of_another_model_is_an_error_with_both_numbers(written, beside, change):
    main, side, config = beside
    ((key, value),) = change.items()
    if written.style == "cascade" and key == "head_dim":
        pytest.skip("latent attention has no head width of its own")
    (side / "config.json").write_text(json.dumps(config | change))
    wanted = "architecture" if key == "model_type" else key.replace("head_dim", "head_width")
    with pytest.raises((FormatError, UnsupportedError)) as raised:
        loaded_beside(main)
    if key != "model_type":
        assert f"its {wanted} is {value}, the model's {config[key]}" in str(raised.value)
