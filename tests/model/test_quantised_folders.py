"""Quantised folders of other programs: their numbers are read exactly, and computed with."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")
pytest.importorskip("compressed_tensors")
pytest.importorskip("mlx")

import torch
from family_harness import distance, logits_of
from quantised_folders import SCHEMES, TOKENS, Scheme, write
from safetensors.torch import load_file, save_file

from cortiq.errors import CortiqError, FormatError, UnsupportedError
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.model.fingerprint import fingerprint, model_facts
from cortiq.models import load_program
from cortiq.numerics.dequantise import embedding_rows
from cortiq.numerics.layouts import floats

BY_NAME = {scheme.name: scheme for scheme in SCHEMES}


@pytest.fixture(scope="module", params=SCHEMES, ids=str)
def written(request: Any, tmp_path_factory: Any) -> Any:
    folder = tmp_path_factory.mktemp(request.param.name)
    return request.param, folder, *write(request.param, folder)


def columns_of(program, name):
    """The columns of the row that meets the weight: all of them, in their order or another."""
    nodes = program.trunk.nodes
    makers = {value: node for node in nodes for value in node.outputs}
    rows = [makers.get(node.inputs[0]) for node in nodes if name in node.weights.values()]
    orders = [list(row.op.order.columns) for row in rows if row and row.op.kind == "Permute"]
    return orders[0] if orders else slice(None)


def test_every_number_is_the_files(written):
    """Codes are exact; a scale is rounded to float32 at most once, and so is its product."""
    scheme, folder, meant, _ = written
    loaded = load_program(open_checkpoint(folder), weight_format="f32")
    for name, expected in meant.items():
        weight = loaded.weights[name]
        assert loaded.program.weights[name].layout == scheme.layout
        if scheme.layout == "f32":
            found = floats(weight, name)
        else:
            found = embedding_rows(weight, np.arange(weight.shape[0]), name=name)
        expected = expected[:, columns_of(loaded.program, name)]
        size = np.abs(expected).max()
        unit = 2.0**-16.9 if scheme.layout == "nf4b32" else 2.0**-22
        assert np.abs(found - expected).max() <= unit * size
        assert np.abs(expected).min() < size / 4


def test_logits_are_those_of_the_dequantised_model(written):
    _, folder, _, logits = written
    bound = 1e-4 if "nf4" in folder.name else 1e-5  # its table is rounded
    assert distance(logits_of(open_checkpoint(folder), TOKENS), logits) < bound


def test_rows_are_the_same_alone(written):
    """A backend takes rows in slices of any size, which begin anywhere."""
    _, folder, meant, _ = written
    checkpoint = open_checkpoint(folder)
    tensor = checkpoint.tensor(next(iter(meant)))
    whole = tensor.make(0, tensor.height)
    for start, stop in ((0, 1), (3, 37), (31, 33), (64, tensor.height)):
        assert np.array_equal(tensor.make(start, stop), whole[start:stop])


def edited(scheme: Scheme, folder: Any, edit: Any, config: Any = None) -> Any:
    """The folder of a scheme, with its tensors and its configuration changed."""
    write(scheme, folder)
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    said = json.loads((folder / "config.json").read_text())
    if config:
        said["quantization_config"] |= config
    (folder / "config.json").write_text(json.dumps(said))
    return folder


DOWN = "model.layers.1.mlp.down_proj"
BROKEN = [
    ("pack-4-32", lambda t: t.pop(f"{DOWN}.weight_scale"), "lacks .*down_proj.weight_scale"),
    ("pack-4-32", lambda t: t.update({f"{DOWN}.weight_scale": torch.ones(128, 5)}), "5 scales"),
    ("pack-4-64-asym", lambda t: t.update({f"{DOWN}.weight_zero_point": torch.ones(
        3, 3, dtype=torch.int32)}), "zero points"),
    ("gptq-4-32", lambda t: t.pop(f"{DOWN}.qzeros"), "lacks .*qzeros"),
    ("gptq-4-32", lambda t: t.update({f"{DOWN}.g_idx": torch.arange(7, dtype=torch.int32)}),
     "g_idx of 7"),
    ("awq", lambda t: t.update({f"{DOWN}.scales": torch.ones(3, 120)}), "words"),
    ("fp8-block", lambda t: t.update({f"{DOWN}.weight_scale_inv": torch.ones(2, 3)}), "scales"),
    ("nvfp4", lambda t: t.update({f"{DOWN}.weight_global_scale": torch.zeros(1)}), "scale for all"),
    ("mxfp4", lambda t: t.update({f"{DOWN}.weight_scale": torch.ones(
        128, 5, dtype=torch.uint8)}), "exponents"),
    ("bitnet", lambda t: t.update({f"{DOWN}.weight_scale": torch.zeros(1)}), "weight_scale of 0"),
    ("bitnet", lambda t: t.update({f"{DOWN}.weight": t[f"{DOWN}.weight"][0]}), "is no matrix"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "edit", "words"), BROKEN)
def test_parts_that_do_not_fit_are_named(name, edit, words, tmp_path):
    with pytest.raises(FormatError, match=rf"layers\.1\.mlp\.down_proj.*{words}|{words}"):
        open_checkpoint(edited(BY_NAME[name], tmp_path, edit))


CONTRADICTIONS = [
    ("gptq-4-32", {"bits": 8}, "codes of 4 bits, not 8"),
    ("gptq-4-32", {"group_size": 64}, "groups of 32 columns, not 64"),
    ("gptq-4-32", {"quant_method": "awq"}, "packed as gptq"),
    ("fp8-tensor", {"quant_method": "gptq"}, "is fp8, which gptq is not"),
    ("nvfp4", {"ignore": ["re:.*mlp.*"]}, "ignored by 're:.*mlp.*'"),
    ("modelopt-nvfp4", {"exclude_modules": ["model.layers.1*"]}, "ignored by"),
    ("bitnet", {"quant_method": "modelopt"}, "is ternary, which modelopt is not"),
    ("bitnet", {"modules_to_not_convert": [DOWN]}, "ignored by"),
]


@pytest.mark.parametrize(("name", "config", "words"), CONTRADICTIONS)
def test_a_configuration_that_contradicts_the_tensors_is_named(name, config, words, tmp_path):
    with pytest.raises(FormatError, match="contradicts the tensors") as caught:
        open_checkpoint(edited(BY_NAME[name], tmp_path, lambda tensors: None, config))
    assert words in str(caught.value)


def test_a_bias_of_zeros_that_the_architecture_lacks_is_none(tmp_path):
    name = "model.layers.0.self_attn.q_proj.bias"
    folder = edited(BY_NAME["gptq-4-32"], tmp_path, lambda t: t.update({name: torch.zeros(128)}))
    logits_of(open_checkpoint(folder), TOKENS)
    folder = edited(BY_NAME["gptq-4-32"], tmp_path, lambda t: t.update({name: torch.ones(128)}))
    with pytest.raises(FormatError, match=r"q_proj\.bias is not used"):
        load_program(open_checkpoint(folder))


def test_zero_points_of_a_file_that_says_it_has_none_are_named(tmp_path):
    folder = edited(BY_NAME["gptq-4-64-asym"], tmp_path, lambda tensors: None, {"sym": True})
    with pytest.raises(CortiqError, match="zero points"):
        logits_of(open_checkpoint(folder), TOKENS)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"quant_method": "quanto"}, "quanto"),
        ({"quant_method": "awq", "version": "marlin"}, "marlin"),
        ({"quant_method": 3}, "'3'"),
        ({"quant_method": "bitnet", "use_rms_norm": True}, "use_rms_norm"),
        ({"quant_method": "bitnet", "quantization_mode": "never"}, "never"),
        ({"quant_method": "bitnet", "linear_class": 5}, "'5'"),
    ],
)
def test_what_is_not_read_is_refused_by_name(config, words, tmp_path):
    folder = edited(BY_NAME["awq"], tmp_path, lambda tensors: None, config)
    with pytest.raises(UnsupportedError, match=words):
        open_checkpoint(folder)


def test_a_method_without_quantised_tensors_is_a_contradiction(tmp_path):
    folder = edited(BY_NAME["fp8-tensor"], tmp_path, lambda tensors: None)
    plain = {
        name: value.float()
        for name, value in load_file(folder / "model.safetensors").items()
        if not name.endswith(("scale_inv", "_scale"))
    }
    save_file(plain, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(FormatError, match="no tensor is quantised"):
        open_checkpoint(folder)


def test_modelopts_own_file_is_enough(tmp_path):
    _, logits = write(BY_NAME["modelopt-nvfp4"], tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    options = config.pop("quantization_config")
    (tmp_path / "config.json").write_text(json.dumps(config))
    said = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": options["quant_algo"]}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(said))
    checkpoint = open_checkpoint(tmp_path)
    assert distance(logits_of(checkpoint, TOKENS), logits) < 1e-5
    before = checkpoint.model_hash()
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(said) + " ")
    assert open_checkpoint(tmp_path).model_hash() != before


def test_a_key_that_is_ignored_is_in_the_fingerprint(tmp_path):
    write(BY_NAME["fp8-tensor"], tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"surprise": 3}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedError, match="surprise"):
        load_program(open_checkpoint(tmp_path))
    checkpoint = open_checkpoint(tmp_path)
    program = load_program(checkpoint, ignored_keys=("surprise",)).program
    facts = model_facts(program, "h")
    assert facts["ignored_config"] == ["surprise"]
    del config["surprise"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    plain = model_facts(load_program(open_checkpoint(tmp_path)).program, "h")
    assert fingerprint(plain) != fingerprint(facts)
    assert plain == {k: v for k, v in facts.items() if k != "ignored_config"}


def test_what_is_asked_of_activations_is_said(tmp_path):
    write(BY_NAME["fp8-tensor"], tmp_path)
    assert open_checkpoint(tmp_path).quantisation.notes == ("activations in FP8",)
    said = {"quant_method": "auto-round", "bits": 4, "act_bits": 4, "act_data_type": "mx_fp"}
    folder = edited(BY_NAME["mxfp4"], tmp_path, lambda tensors: None, said)
    assert open_checkpoint(folder).quantisation.notes == ("activations in FP4",)


def test_floats_that_stand_for_ternary_codes_are_those_that_no_list_keeps(tmp_path):
    """A table and the head are kept, and whatever is listed in its place."""
    layouts = {}
    for listed in (None, ["gate_proj"]):
        said = {"modules_to_not_convert": listed}
        path, scheme = tmp_path / str(listed), BY_NAME["bitnet-online"]
        checkpoint = open_checkpoint(edited(scheme, path, lambda tensors: None, said))
        layouts[str(listed)] = {
            name: checkpoint.tensor(f"{name}.weight").type
            for name in ("model.embed_tokens", "lm_head", "model.layers.0.mlp.gate_proj", DOWN)
        }
    kinds = {name: tuple(found.values()) for name, found in layouts.items()}
    assert kinds["None"] == ("F32", "F32", "i4b32", "i4b32")
    assert kinds["['gate_proj']"] == ("F32", "i4b32", "BF16", "i4b32")


def test_floats_that_stand_for_ternary_codes_are_finite(tmp_path):
    broken = lambda t: t[f"{DOWN}.weight"].view(-1)[5].fill_(float("inf"))  # noqa: E731
    checkpoint = open_checkpoint(edited(BY_NAME["bitnet-online"], tmp_path, broken))
    with pytest.raises(FormatError, match="down_proj has numbers that are not finite"):
        logits_of(checkpoint, TOKENS)
