"""Matrices that other libraries quantised, as `tools/quantised_samples.py` kept them, are read."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from safetensors.torch import load_file, save_file

from cortiq.errors import FormatError, UnsupportedError
from cortiq.formats.quantisation_config import read_quantisation
from cortiq.formats.quantised import read_quantised
from cortiq.formats.safetensors import open_safetensors
from cortiq.numerics.dequantise import embedding_rows
from cortiq.numerics.groupquants import NF4_UNIT, NF4_VALUES
from cortiq.numerics.layouts import LAYOUTS, Weight, floats

SAMPLES = defaultdict(dict)
for _name, _tensor in load_file(Path(__file__).parents[1] / "data/quantised.safetensors").items():
    _sample, _, _end = _name.partition("/")
    SAMPLES[_sample][_end] = _tensor
GPTQ = {"quant_method": "gptq", "checkpoint_format": "gptq_v2"}
METHODS = {
    "bnb-nf4": {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "bnb-fp4": {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "fp4"},
    "bnb-int8": {"quant_method": "bitsandbytes", "load_in_8bit": True},
    "hqq": {"quant_method": "hqq"},
    "gptq": GPTQ,
    "awq": {"quant_method": "awq", "version": "gemm"},
    "modelopt": {"quant_method": "modelopt"},
}
LAYOUT = {
    "bnb-nf4": "nf4b32", "bnb-fp4": "fp4b32", "bnb-int8": "i8b32", "hqq-8": "i8b32m",
    "hqq-5": "i8b32m", "hqq": "i4b32m", "gptq-2": "i4b32", "gptq-3": "i4b32", "gptq-4": "i4b32m",
    "gptq-8": "i8b32m", "awq": "i4b32m", "quark-int4-row": "i4b32", "quark-mxfp4": "MXFP4",
    "quark": "i4b32m", "modelopt-nvfp4": "e2m1b16", "modelopt-mxfp4": "MXFP4",
    "modelopt-mxfp8": "e4m3b32",
}  # fmt: skip


def of(table, name):
    """The entry of the longest key that a name begins with."""
    return table[max((key for key in table if name.startswith(key)), key=len)]


def config_of(name):
    if name.startswith("quark"):
        _, kind, *rest = name.split("-")
        spec = {"dtype": kind, "qscheme": "per_group", "group_size": 32}
        export = {"pack_method": rest[-1]} if rest else {}
        return {"quant_method": "quark", "global_quant_config": {"weight": spec}, "export": export}
    return of(METHODS, name)


def opened(name, folder, parts=None, config=None):
    """The one tensor that a sample's parts are read as."""
    parts = {end: part for end, part in (parts or SAMPLES[name]).items() if end != "meant"}
    save_file(
        {f"m.{end}": part.clone() for end, part in parts.items()}, folder / "model.safetensors"
    )
    how = read_quantisation({"quantization_config": config or config_of(name)}, folder)
    found = read_quantised(open_safetensors(folder), how)
    assert list(found.tensors) == ["m.weight"]
    return found.joined("m.weight")


def values(tensor):
    raw, layout = tensor.raw, LAYOUTS[tensor.type]
    weight = Weight.from_bytes(layout, raw, tensor.shape)
    if layout.kind == "float":
        return floats(weight, "m")
    return embedding_rows(weight, np.arange(tensor.shape[0]), name="m")


@pytest.mark.parametrize("name", SAMPLES)
def test_numbers_are_the_librarys(name, tmp_path):
    tensor, meant = opened(name, tmp_path), SAMPLES[name]["meant"].double().numpy()
    if "disorder" not in name:
        assert tensor.type == of(LAYOUT, name)
    found = values(tensor).astype(np.float64)
    assert found.shape == meant.shape
    unit = 2.0**-16.9 if name.startswith("bnb-nf4") else 2.0**-20
    assert (np.abs(found - meant) <= np.abs(meant).max(axis=1, keepdims=True) * unit).all()
    assert np.abs(meant).max() > 0
    parts = np.concatenate([tensor.make(at, at + 1) for at in range(tensor.height)])
    assert np.array_equal(parts, tensor.raw)


@pytest.mark.parametrize("name", [name for name in SAMPLES if "disorder" in name])
def test_columns_in_no_order_of_groups_are_codes_in_another_order(name, tmp_path):
    """GPTQModel packed them with `desc_act`."""
    tensor, meant = opened(name, tmp_path), SAMPLES[name]["meant"].double().numpy()
    ordered = tensor.ordered
    assert ordered.type in ("i4b32", "i4b32m", "i8b32", "i8b32m")
    found = values(replace(tensor, type=ordered.type, make=ordered.make))
    largest = np.abs(meant).max(axis=1, keepdims=True)
    assert (np.abs(found - meant[:, ordered.columns]) <= largest * 2.0**-20).all()
    assert sorted(ordered.columns) == list(range(meant.shape[1]))


def test_nf4_is_the_librarys_table_to_half_a_unit():
    table = SAMPLES["bnb-nf4"]["weight.quant_map"].double().numpy()
    assert np.abs(NF4_VALUES * NF4_UNIT - table).max() <= 2.0**-16.9 < NF4_UNIT / 2
    assert np.array_equal(np.rint(table / NF4_UNIT), NF4_VALUES)


@pytest.mark.parametrize("name", ["bnb-nf4", "bnb-fp4"])
def test_samples_have_every_code_and_scales_far_apart(name):
    packed = SAMPLES[name]["weight"].numpy()
    assert set(np.concatenate([packed & 15, packed >> 4]).ravel()) == set(range(16))
    scales = SAMPLES[name]["weight.absmax"].numpy()
    assert scales.max() > 2.0**30 * scales.min()


def bytes_of(data):
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def state(text):
    return bytes_of(text.encode())


STATE = "weight.quant_state.bitsandbytes__nf4"
NESTED = SAMPLES["bnb-nf4-nested"]
BROKEN = [
    ("bnb-nf4", {"weight": SAMPLES["bnb-nf4"]["weight"][:-1]}, "packs 1023 bytes"),
    ("bnb-nf4", {"weight.absmax": SAMPLES["bnb-nf4"]["weight.absmax"][:-1]}, "has 31 scales"),
    ("bnb-nf4", {"weight.absmax": None}, "lacks m.weight.absmax"),
    ("bnb-nf4", {STATE: state("[]")}, "not a JSON object"),
    ("bnb-nf4", {STATE: state('{"shape": [32, true], "blocksize": 64}')}, "no counts"),
    ("bnb-nf4", {STATE: state('{"shape": [32, 64], "blocksize": 0}')}, "no counts"),
    ("bnb-nf4", {STATE: state('{"shape": [2048], "blocksize": 64}')}, "no matrix"),
    ("bnb-nf4-nested", {"weight.nested_quant_map": None}, "lacks m.weight.nested_quant_map"),
    ("bnb-nf4-nested", {"weight.nested_absmax": NESTED["weight.nested_quant_map"]}, "256 scales"),
    ("bnb-int8", {"SCB": SAMPLES["bnb-int8"]["SCB"][:-1]}, "has 31 scales"),
    ("hqq-4", {"W_q": SAMPLES["hqq-4"]["W_q"][1:]}, "packs 992 bytes"),
    ("hqq-4", {"scale": SAMPLES["hqq-4"]["scale"][1:]}, "63 numbers in scale"),
    ("hqq-4", {"group_size": SAMPLES["hqq-4"]["shape"]}, "2 numbers in group_size"),
    ("hqq-4", {"shape": SAMPLES["hqq-4"]["shape"][:1]}, "matrix"),
    ("hqq-4", {"axis": SAMPLES["hqq-4"]["axis"] * 2}, "neither 0 nor 1"),
    ("quark-int4-order", {"weight_zero_point": SAMPLES["quark-int4-order"]["weight"]}, "zero"),
]


@pytest.mark.parametrize(("name", "changes", "words"), BROKEN)
def test_parts_that_do_not_fit_are_named(name, changes, words, tmp_path):
    parts = {**SAMPLES[name], **changes}
    parts = {end: part for end, part in parts.items() if part is not None}
    with pytest.raises(FormatError, match=words):
        opened(name, tmp_path, parts)


REFUSED = [
    ("bnb-nf4", {"weight.quant_map": SAMPLES["bnb-fp4"]["weight.quant_map"]}, "table of its own"),
    ("bnb-nf4", {STATE: state('{"shape": [32, 64], "blocksize": 16}')}, "scale for 16 elements"),
    ("bnb-int8", {"weight_format": bytes_of(b"\x02")}, "order of a GPU"),
    ("hqq-4", {"packing": bytes_of(b"4bit_u9")}, "packed as '4bit_u9'"),
    ("hqq-4", {"group_size": SAMPLES["hqq-4"]["group_size"] // 2}, "groups of 16 columns"),
    ("modelopt-nvfp4", {"pre_quant_scale": SAMPLES["bnb-int8"]["SCB"]}, "pre_quant_scale"),
]


@pytest.mark.parametrize(("name", "changes", "words"), REFUSED)
def test_what_is_not_read_is_refused_by_name(name, changes, words, tmp_path):
    with pytest.raises(UnsupportedError, match=words) as caught:
        opened(name, tmp_path, {**SAMPLES[name], **changes})
    assert caught.value.hint


CONFIGURATIONS = [
    ("bnb-nf4", config_of("bnb-fp4"), "codes of nf4, not of fp4"),
    ("bnb-int8", config_of("hqq"), "int8, which hqq is not"),
    ("hqq-4", config_of("gptq"), "hqq, which gptq is not"),
    ("quark-int4-order", config_of("quark-mxfp4"), "type quantization_config does not say"),
    ("quark-mxfp4", config_of("quark-mxfp4") | {"algo_config": [{"name": "rotation"}]}, "rotation"),
    ("quark-mxfp4", {"quant_method": "quark", "global_quant_config": {
        "weight": {"dtype": "fp4", "scale_format": "e5m3"}}}, "e5m3"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "config", "words"), CONFIGURATIONS)
def test_configurations_are_checked(name, config, words, tmp_path):
    with pytest.raises((FormatError, UnsupportedError), match=words):
        opened(name, tmp_path, config=config)
