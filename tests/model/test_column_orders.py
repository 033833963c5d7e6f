"""Matrices whose groups are no runs of columns: codes stay, and rows are permuted for them."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("transformers")
pytest.importorskip("compressed_tensors")

import sys
from pathlib import Path

import torch
from family_harness import distance, logits_of
from quantised_folders import BF16, TOKENS, Scheme, compressed, gptq, integers, write
from safetensors.torch import load_file, save_file
from test_adapter_overlays import computed, error
from test_mixed_folders import MLP, QWEN3_MOE
from test_mixed_folders import write as write_mixed

sys.path.append(str(Path(__file__).parents[1]))
from adapter_folders import write_ia3, write_lora

import cortiq
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.ir.layers import Attention, GatedMLP
from cortiq.model.source import open_source
from cortiq.models import load_program
from cortiq.options import LoadOptions

SAID = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False, "desc_act": True}
SHUFFLED = Scheme("shuffled", gptq(4, 32, False, shuffled=True), SAID, "i4b32m")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("shuffled")
    return path, *write(SHUFFLED, path)


def permutes(program):
    return [node for node in program.trunk.nodes if node.op.kind == "Permute"]


def test_products_of_one_row_in_one_order_share_the_permuted_row(folder):
    """Of a layer's matrices k and v, gate and up have one order; q, o and down one of their own."""
    program = load_program(open_checkpoint(folder[0])).program
    assert len(permutes(program)) == 2 * 5
    users = [n for n in program.trunk.nodes if n.inputs and n.inputs[0].endswith(".order")]
    assert len(users) == 2 * 7 and {node.op.kind for node in users} == {"Linear"}


def test_logits_are_those_of_the_dequantised_model_and_nothing_is_noted(folder):
    checkpoint, logits = open_checkpoint(folder[0]), folder[2]
    assert distance(logits_of(checkpoint, TOKENS), logits) < 1e-5
    source = open_source(str(folder[0]), LoadOptions())
    assert not source.notes
    floats = load_program(checkpoint, column_orders=False)
    assert not permutes(floats.program)
    name = "model.layers.0.mlp.down_proj.weight"
    assert floats.program.weights[name].layout == "w16"


@pytest.mark.parametrize("kind", ["lora", "dora", "ia3"])
def test_adapters_change_permuted_products_as_they_do_others(kind, folder, tmp_path):
    """Beside the same values as floats, whose rows are in the order of the file."""
    found = {}
    for form in (None, "w16"):
        with cortiq.load(folder[0], backend="cpu", weight_format=form) as model:
            if not found:
                more = {} if kind == "ia3" else {"dora": kind == "dora"}
                (write_ia3 if kind == "ia3" else write_lora)(tmp_path / "a", model, 1, **more)
            model.load_adapter("a", tmp_path / "a")
            found[form] = [computed(model, [name])[name] for name in ("a", None)]
    changed, plain = (error(*pair) for pair in zip(found[None], found["w16"], strict=True))
    assert plain < 1e-3 and changed < 2e-3
    assert error(*found[None]) > 0.05


def test_a_weight_format_converts_them_as_floats(folder):
    loaded = load_program(open_checkpoint(folder[0]), weight_format="w8")
    assert not permutes(loaded.program) and not loaded.notes


def test_layers_without_such_matrices_stay(folder, tmp_path):
    tensors = load_file(folder[0] / "model.safetensors")
    for name in list(tensors):
        if "layers.0" in name and name.endswith("g_idx"):
            del tensors[name]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_bytes((folder[0] / "config.json").read_bytes())
    nodes = load_program(open_checkpoint(tmp_path)).program.trunk.nodes
    assert sum(isinstance(node.op, Attention | GatedMLP) for node in nodes) == 2


def test_groups_of_several_sizes_become_floats_and_are_named(folder, tmp_path):
    tensors = load_file(folder[0] / "model.safetensors")
    index = tensors["model.layers.1.mlp.down_proj.g_idx"]
    index[(index == 0).nonzero()[0]] = 1
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_bytes((folder[0] / "config.json").read_bytes())
    checkpoint = open_checkpoint(tmp_path)
    loaded = load_program(checkpoint)
    assert loaded.program.weights["model.layers.1.mlp.down_proj.weight"].layout == "w16"
    assert any("1 matrices have groups of several sizes" in note for note in checkpoint.notes)


def test_stacks_of_experts_become_floats_and_are_named(tmp_path):
    def pack(x):
        parts, meant = gptq(4, 32, False, shuffled=True)(x)
        return parts, np.ascontiguousarray(meant)

    packs = {f"experts.{e}.{name}": pack for e in range(4) for name in MLP}
    _, logits = write_mixed(QWEN3_MOE, tmp_path, packs, {"quantization_config": SAID})
    loaded = load_program(open_checkpoint(tmp_path))
    assert not permutes(loaded.program)
    assert any("6 matrices" in note and "desc_act" in note for note in loaded.notes)
    assert distance(logits_of(open_checkpoint(tmp_path), TOKENS), logits) < 1e-4


def actorder(x: torch.Tensor):
    """compressed-tensors' codes of columns that were put in order, and each column's group."""
    order = np.random.default_rng(x.shape[1]).permutation(x.shape[1])
    parts, meant = integers(4, 32, True, BF16)(x[:, order])
    back = np.argsort(order)
    codes = parts["weight_packed"].numpy().view(np.uint8)
    nibbles = np.stack([codes & 15, codes >> 4], axis=-1).reshape(len(x), -1)[:, back]
    packed = np.ascontiguousarray(nibbles[:, ::2] | nibbles[:, 1::2] << 4, np.uint8)
    parts["weight_packed"] = torch.from_numpy(packed.view(np.int32))
    parts["weight_g_idx"] = torch.from_numpy((back // 32).astype(np.int32))
    return parts, np.ascontiguousarray(meant[:, back])


def test_the_order_of_compressed_tensors_is_followed(tmp_path):
    """Its older versions wrote `weight_g_idx` for actorder "group"."""
    config = compressed("pack-quantized", 4, group_size=32, actorder="group")
    _, logits = write(Scheme("actorder", actorder, config, "i4b32"), tmp_path)
    loaded = load_program(open_checkpoint(tmp_path))
    layouts = {s.layout for n, s in loaded.program.weights.items() if n.endswith("_proj.weight")}
    assert layouts == {"i4b32"} and permutes(loaded.program)
    assert distance(logits_of(open_checkpoint(tmp_path), TOKENS), logits) < 1e-5
