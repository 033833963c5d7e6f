"""Kimi K3's tower against an evaluation of its published formulas in double, written here."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("PIL")

import kimi_k3_folders
import numpy as np
import torch
import vision_folders
from ideal_senses import ideal_rows
from installed import backends
from safetensors.numpy import load_file, save_file
from torch.nn.functional import gelu, interpolate, linear, softmax

import cortiq
from cortiq.errors import FormatError, UnsupportedError
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.tokenizer.tokenizer import Tokenizer
from cortiq.vision.load import load_vision, vision_family

TOWER = {
    "vt_hidden_size": 32, "vt_intermediate_size": 40, "vt_num_hidden_layers": 2,
    "vt_num_attention_heads": 3, "qkv_hidden_size": 48, "patch_size": 6, "init_pos_emb_height": 5,
    "init_pos_emb_width": 5, "init_pos_emb_time": 4, "pos_emb_type": "divided_fixed",
    "pos_emb_interpolation_mode": "bilinear", "merge_kernel_size": [2, 2],
    "merge_type": "sd2_tpool", "mm_hidden_size": 32, "mm_projector_type": "patchmergerv2",
    "norm_type": "rmsnorm", "mlp_type": "mlp2", "attn_bias": False, "linear_bias": False,
    "patch_embed_proj_bias": False, "projector_hidden_act": "gelu", "projector_ln_eps": 0.02,
    "activation_func": "gelu_pytorch_tanh", "text_hidden_size": 48,
}  # fmt: skip
GEOMETRIES = {
    "published": {},
    "one head": {"vt_num_attention_heads": 1, "qkv_hidden_size": 16, "vt_num_hidden_layers": 1},
    "narrow": {"vt_hidden_size": 24, "mm_hidden_size": 24, "qkv_hidden_size": 80,
               "vt_num_attention_heads": 4, "init_pos_emb_height": 8, "init_pos_emb_width": 8},
}  # fmt: skip
SIZES = ((40, 70), (100, 30), (20, 31))
"""Height and width: shrunk, with a border of black; tall; and one that keeps its size."""
CONTROL = ["<|media_pad|>", "<|media_begin|>", "<|media_content|>", "<|media_end|>"]
EXACT = {"temperature": 0, "ignore_eos": True, "max_tokens": 3}


def drawn(size):
    return np.random.default_rng(size).integers(0, 256, (*size, 3), dtype=np.uint8)


def shapes(c):
    wide, inner, text = c["vt_hidden_size"], c["vt_intermediate_size"], c["text_hidden_size"]
    heads, side, square = c["qkv_hidden_size"], c["init_pos_emb_height"], 4 * c["vt_hidden_size"]
    layer = {
        "norm0": (wide,), "norm1": (wide,), "wqkv": (3 * heads, wide), "wo": (wide, heads),
        "mlp.fc0": (inner, wide), "mlp.fc1": (wide, inner),
    }  # fmt: skip
    blocks = range(c["vt_num_hidden_layers"])
    return {
        "vision_tower.patch_embed.proj": (wide, 3, c["patch_size"], c["patch_size"]),
        "vision_tower.patch_embed.pos_emb": (side, side, wide),
        "vision_tower.encoder.final_layernorm": (wide,),
        **{f"vision_tower.encoder.blocks.{n}.{k}": v for n in blocks for k, v in layer.items()},
        "mm_projector.proj.0": (square, square), "mm_projector.proj.2": (text, square),
        "mm_projector.post_norm": (text,),
    }  # fmt: skip


def write(folder, **sight):
    """Write a folder as published, and return the tower's tensors."""
    c, dice = TOWER | sight, np.random.default_rng(3)
    ids = vision_folders.write_tokenizer(folder, CONTROL, vision_folders.template_of(CONTROL[0]))
    text = kimi_k3_folders.TEXT | {"vocab_size": len(ids)}
    kimi_k3_folders.write(folder, text, kimi_k3_folders.tensors(text))
    config = json.loads((folder / "config.json").read_text())
    config |= {"vision_config": c, "media_placeholder_token_id": ids[CONTROL[0]]}
    (folder / "config.json").write_text(json.dumps(config))
    rules = {
        "patch_size": 6, "merge_kernel_size": 2, "in_patch_limit": 24,
        "patch_limit_on_one_side": 8, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
        "transparent_bg_config": {"type": "chessboard"},
    }  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps({"media_proc_cfg": rules}))
    made = {}
    for name, shape in shapes(c).items():
        values = dice.standard_normal(shape)
        values = 1 + 0.3 * values if len(shape) == 1 else values / np.sqrt(np.prod(shape[1:]))
        made[f"{name}.weight"] = values.astype(np.float32)
    save_file(load_file(folder / "model.safetensors") | made, folder / "model.safetensors")
    return made


def normed(x, gain, eps):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * gain


def turned(x, down, across):
    """Pairs of neighbours of a head turn by the column, the next by the row, and so on."""
    dim = x.shape[-1]
    angles = 10000.0 ** (-torch.arange(0, dim, 4).double() / dim)
    column, row = (torch.outer(one.double(), angles) for one in (
        torch.arange(down * across) % across, torch.arange(down * across) // across
    ))  # fmt: skip
    turns = torch.stack([column, row], dim=-1).reshape(down * across, 1, dim // 2)
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(turns), turns)).reshape(x.shape)


def theirs(c, tensors, patches, down, across):
    """The rows of an image, from its patches row by row."""
    w = {name: torch.tensor(values).double() for name, values in tensors.items()}
    tower, eps = "vision_tower.patch_embed", torch.finfo(torch.float32).eps
    x = linear(torch.tensor(patches).double(), w[f"{tower}.proj.weight"].flatten(1))
    table = w[f"{tower}.pos_emb.weight"].permute(2, 0, 1)[None]
    x = x + interpolate(table, size=(down, across), mode="bilinear")[0].flatten(1).T
    heads = c["vt_num_attention_heads"]
    for n in range(c["vt_num_hidden_layers"]):
        layer = f"vision_tower.encoder.blocks.{n}"
        own = {
            k.removeprefix(f"{layer}.").removesuffix(".weight"): v
            for k, v in w.items() if k.startswith(f"{layer}.")
        }  # fmt: skip
        qkv = linear(normed(x, own["norm0"], eps), own["wqkv"]).reshape(len(x), 3, heads, -1)
        q, k, v = turned(qkv[:, 0], down, across), turned(qkv[:, 1], down, across), qkv[:, 2]
        scores = torch.einsum("qhd,khd->hqk", q, k) / q.shape[-1] ** 0.5
        mixed = torch.einsum("hqk,khd->qhd", softmax(scores, -1), v).flatten(1)
        x = x + linear(mixed, own["wo"])
        inner = gelu(linear(normed(x, own["norm1"], eps), own["mlp.fc0"]), approximate="tanh")
        x = x + linear(inner, own["mlp.fc1"])
    x = normed(x, w["vision_tower.encoder.final_layernorm.weight"], eps)
    squares = x.reshape(down // 2, 2, across // 2, 2, -1).transpose(1, 2).reshape(-1, 4 * len(x[0]))
    y = gelu(linear(squares, w["mm_projector.proj.0.weight"]))
    y = linear(y, w["mm_projector.proj.2.weight"])
    return normed(y, w["mm_projector.post_norm.weight"], c["projector_ln_eps"]).numpy()


def sight_of(folder):
    checkpoint = open_checkpoint(folder)
    return load_vision(checkpoint, vision_family(checkpoint), "f32")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kimi-k3")
    write(folder)
    return folder


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_rows_in_float64_are_the_formulas(tmp_path, geometry):
    tensors, c = write(tmp_path, **GEOMETRIES[geometry]), TOWER | GEOMETRIES[geometry]
    vision = sight_of(tmp_path)
    for size in SIZES:
        image = vision.processor.prepare(drawn(size))
        (tile,) = image.tiles
        across = int(tile.inputs["axes"][:, 1].max()) + 1
        down = len(tile.patches) // across
        wanted = theirs(c, tensors, tile.patches, down, across)
        assert len(wanted) == image.rows
        assert np.abs(ideal_rows(vision, image) - wanted).max() < 1e-5 * np.abs(wanted).max()


def test_patches_are_the_shrunk_images_with_black_beside_it(tmp_path):
    """20 × 31 pixels keep their size; squares of 12 make them 24 × 36."""
    write(tmp_path)
    pixels = drawn((20, 31))
    (tile,) = sight_of(tmp_path).processor.prepare(pixels).tiles
    whole = np.zeros((24, 36, 3))
    whole[:20, :31] = pixels
    cut = (whole / 255 - 0.5) / 0.5
    cut = cut.reshape(4, 6, 6, 6, 3).transpose(0, 2, 4, 1, 3).reshape(24, -1)
    assert np.abs(tile.patches - cut).max() < 1e-6


def test_an_image_stands_between_marks_after_its_own_size(folder):
    image = sight_of(folder).processor.prepare(drawn((40, 70)))
    text = "<|media_begin|>image 70x40<|media_content|>" + CONTROL[0] * 8 + "<|media_end|>"
    assert (image.text, image.rows) == (text, 8)
    tokenizer = Tokenizer.from_folder(folder)
    with cortiq.load(folder, images=True, backend="cpu", threads=1) as model:
        prompt = model.image_prompt(f"a{CONTROL[0]}b", [drawn((40, 70))])
        assert list(prompt.ids)[-40:] == tokenizer.encode(f"a{text}b", parse_special=True)[-40:]


def answers(folder, backend):
    with cortiq.load(folder, images=True, backend=backend, threads=1) as model:
        found = []
        for content in ([{"image": drawn((40, 70))}, {"type": "text", "text": "b"}], "b"):
            made = model.chat([{"role": "user", "content": content}], **EXACT)
            found.append(made.step_digests)
        return found


@pytest.fixture(scope="module")
def wanted(folder):
    return answers(folder, "reference")


@pytest.mark.parametrize(
    "backend",
    [
        name if name == "cpu" else pytest.param(name, marks=pytest.mark.slow)
        for name in backends()
        if name != "reference"
    ],
)
def test_every_backend_has_the_references_digests(folder, wanted, backend):
    assert wanted[0] != wanted[1]
    assert answers(folder, backend) == wanted


@pytest.mark.parametrize(
    "change",
    [
        {"norm_type": "layernorm"}, {"mm_projector_type": "patchmerger"}, {"attn_bias": True},
        {"pos_emb_interpolation_mode": "bicubic"}, {"merge_kernel_size": [2, 3]},
        {"vt_num_attention_heads": 5}, {"vt_num_attention_heads": "3"}, {"qkv_hidden_size": 45},
        {"init_pos_emb_width": 7}, {"mlp_type": "mlp3"},
    ],
    ids=str,
)  # fmt: skip
def test_configurations_that_do_not_fit_are_refused(folder, tmp_path, change):
    (tmp_path / "model.safetensors").symlink_to(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config["vision_config"] |= change
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises((FormatError, UnsupportedError)):
        sight_of(tmp_path)


def test_the_published_tower_has_401_million_parameters(tmp_path):
    """As many as its layers of 1024, 12 heads of 128 and MLPs of 4096 hold."""
    published = TOWER | {
        "vt_hidden_size": 1024, "vt_intermediate_size": 4096, "vt_num_hidden_layers": 27,
        "vt_num_attention_heads": 12, "qkv_hidden_size": 1536, "patch_size": 14,
        "init_pos_emb_height": 64, "init_pos_emb_width": 64, "mm_hidden_size": 1024,
        "text_hidden_size": 7168,
    }  # fmt: skip
    text = kimi_k3_folders.TEXT | {"hidden_size": 7168}
    whole = {"model_type": "kimi_k3", "text_config": text, "vision_config": published}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    rules = {"in_patch_limit": 65536, "patch_limit_on_one_side": 512}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"media_proc_cfg": rules}))
    save_file({"lm_head.weight": np.zeros((1,), np.float32)}, tmp_path / "model.safetensors")
    family = vision_family(open_checkpoint(tmp_path))
    program = family.module.build(family.config, family.processor.most)
    ours = sum(int(np.prod(spec.shape)) for spec in program.weights.values())
    assert ours == sum(int(np.prod(shape)) for shape in shapes(published).values())
    assert 4.0e8 < ours < 4.5e8
