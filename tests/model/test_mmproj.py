"""Towers in llama.cpp's files: the same rows and answers as the folder that they were made from."""

from __future__ import annotations

import json
import re
import shutil

import pytest

pytest.importorskip("transformers")
pytest.importorskip("PIL")
pytest.importorskip("gguf")

import gguf
import gguf_files
import numpy as np
import vision_folders
from gguf_files import GGUF, close_writer
from safetensors.numpy import load_file, save_file
from test_vision import EXACT, SIZES, drawn, ideal_logits, ideal_rows, prompt_of, sight_of

import cortiq
from cortiq.convert.run import convert_model
from cortiq.errors import FormatError, UnsupportedError
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.vision.image import CLIP_DEVIATION, CLIP_MEAN
from cortiq.vision.load import load_vision, vision_family
from cortiq.vision.mmproj import with_mmproj

QWEN3 = ("qwen3_vl", "qwen3_vl_moe")
SECTIONS = {"rope.dimension_sections": [4, 2, 2, 0]}


def experts_of(name, values):
    """Yield the matrices of experts, which folders have in stacks."""
    stem, _, role = name.rpartition(".")
    if not stem.endswith(".experts"):
        yield name, values
        return
    for number, one in enumerate(values):
        parts = {"gate_proj": one[: len(one) // 2], "up_proj": one[len(one) // 2 :]}
        for own, part in (parts if role == "gate_up_proj" else {role: one}).items():
            yield f"{stem}.{number}.{own}.weight", part


TEXTS = {
    "gemma3": GGUF("gemma3", norm_offset=1.0, values=lambda config: {
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": 2,
    }),
    "idefics3": GGUF("llama", permuted=True),
    **dict.fromkeys(("llava", "pixtral", "mistral3"), GGUF("llama", permuted=True)),
    "internvl": GGUF("qwen2"),
    "minicpmv": GGUF("qwen2"),
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl"), GGUF("qwen2vl", lambda config: SECTIONS)),
    "qwen3_vl": GGUF("qwen3vl", lambda config: SECTIONS | {"n_deepstack_layers": 2}),
    "qwen3_vl_moe": GGUF("qwen3vlmoe", lambda config: SECTIONS | {
        "n_deepstack_layers": 1, "expert_count": config["num_local_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
    }, tensors=lambda config, name, values: dict(experts_of(name, values))),
}  # fmt: skip


def write_text(path, folder, how):
    """Write the text model with its tokenizer."""
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    template = json.loads((folder / "tokenizer_config.json").read_text())["chat_template"]
    tokens = sorted(vocabulary, key=vocabulary.get)
    tokens[-1] = "ab"  # a file has a merge at least; no text here has these letters together
    special = [len(token) > 1 and token[0] in "<[" for token in tokens]
    emit = gguf_files.emit

    def with_tokenizer(place, architecture, values, tensors):
        emit(place, architecture, values, tensors)
        reader, writer = gguf.GGUFReader(place), gguf.GGUFWriter(path, architecture)
        for key, value in values.items():
            name = f"{architecture}.{key}"
            if isinstance(value, float):
                writer.add_float32(name, value)
            elif isinstance(value, int):
                writer.add_uint32(name, value)
            elif isinstance(value, list):
                writer.add_array(name, value)
            elif value is not None:
                writer.add_string(name, value)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("default")
        writer.add_token_list(tokens)
        writer.add_token_merges(["a b"])
        writer.add_token_types([3 if one else 1 for one in special])
        writer.add_bos_token_id(vocabulary["<bos>"])
        writer.add_eos_token_id(vocabulary["<eos>"])
        writer.add_add_bos_token(False)
        writer.add_chat_template(template)
        for tensor in reader.tensors:
            writer.add_tensor(tensor.name, np.array(tensor.data))
        close_writer(writer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf_files, "emit", with_tokenizer)
        gguf_files.write_gguf(path.with_suffix(".plain"), text_folder(folder), how)


def text_folder(folder):
    """Write the text model as a folder of its own."""
    text = folder / "text"
    text.mkdir()
    whole = json.loads((folder / "config.json").read_text())
    kept = {key: value for key, value in whole.items() if key != "vision_config"}
    if "text_config" not in whole:  # MiniCPM-V's, whose keys are those of the text model
        kept["model_type"] = "qwen2"
    (text / "config.json").write_text(json.dumps(whole.get("text_config", kept)))
    tensors = load_file(folder / "model.safetensors")
    parts = ("model.language_model.", "model.text_model.", "language_model.model.", "llm.model.")
    if not any(name.startswith(parts) for name in tensors):
        parts = ("model.",)
    kept = {
        "model." + name.removeprefix(part): values
        for name, values in tensors.items() for part in parts if name.startswith(part)
    }  # fmt: skip
    for name in tensors:
        if name.endswith("lm_head.weight"):
            kept["lm_head.weight"] = tensors[name]
    save_file(kept, text / "model.safetensors")
    return text


PROJECTORS = {
    "llava": "mlp", "minicpmv": "resampler", "internvl": "internvl",
    "pixtral": "pixtral", "mistral3": "pixtral",
    "qwen2_vl": "qwen2vl_merger", "qwen2_5_vl": "qwen2.5vl_merger",
    **dict.fromkeys(QWEN3, "qwen3vl_merger"),
}  # fmt: skip
MERGERS = {"norm": "v.post_ln", "ln_q": "v.post_ln", "linear_fc1": "mm.0", "linear_fc2": "mm.2",
           "mlp.0": "mm.0", "mlp.2": "mm.2"}  # fmt: skip
"""Of the converter's own, beside the names that the package has."""


def newer_metadata(name, sight):
    """Return what the converter writes of a LLaVA's or a Qwen's tower, and its flags."""
    if "qwen" not in name:
        edge, patch = (
            one if isinstance(one, int) else one[0]
            for one in (sight["image_size"], sight["patch_size"])
        )
        found = {
            "image_size": {"pixtral": 70, "mistral3": 112, "minicpmv": 112}.get(name, edge),
            "patch_size": patch,
            "embedding_length": sight["hidden_size"],
            "feed_forward_length": sight["intermediate_size"],
            "attention.head_count": sight["num_attention_heads"],
            "block_count": sight["num_hidden_layers"] - (name == "llava"),
        }  # fmt: skip
        tiles = {"projector.scale_factor": 2, "preproc_max_tiles": 5}
        more = {"mistral3": {"spatial_merge_size": 2}, "internvl": tiles}.get(name, {})
        flags = {"internvl": {"gelu": True}, "llava": {}}.get(name, {"gelu": True})
        return found | more, flags
    width = sight.get("embed_dim", sight["hidden_size"])
    found = {
        "image_size": 560, "patch_size": sight["patch_size"], "embedding_length": width,
        "block_count": sight["depth"], "attention.head_count": sight["num_heads"],
        "feed_forward_length": sight.get("intermediate_size", width * sight.get("mlp_ratio", 0)),
        "image_min_pixels": 256, "image_max_pixels": 2048, "spatial_merge_size": 2,
    }  # fmt: skip
    if name == "qwen2_5_vl":
        every = sight["fullatt_block_indexes"][0] + 1
        return found | {"n_wa_pattern": every, "window_size": sight["window_size"]}, {"silu": True}
    return found, {"gelu": True} if name in QWEN3 else {}


INTERNVL = {
    "embeddings.cls_token": "v.class_embd", "layernorm_before": "ln1", "layernorm_after": "ln2",
    "embeddings.patch_embeddings.projection": "v.patch_embd", "lambda_1": "ls1.weight",
    "embeddings.position_embeddings": "v.position_embd.weight", "lambda_2": "ls2.weight",
    "attention.projection_layer": "attn_out", "attention.": "attn_", "_proj.": ".",
    "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down", "encoder.layer.": "v.blk.", "vision_tower.": "",
    "multi_modal_projector.layer_norm": "mm.model.mlp.0",
    "multi_modal_projector.linear_1": "mm.model.mlp.1",
    "multi_modal_projector.linear_2": "mm.model.mlp.3",
}  # fmt: skip
"""Names that the converter gives to the family's first folders, from those of later ones."""


def squares_tensors(name, folder, sight):
    """Yield the tensors of a Pixtral, a Mistral 3 or an InternVL as the converter has them."""
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, 8)
    for tensor, values in load_file(folder / "model.safetensors").items():
        if "language_model" in tensor or "lm_head" in tensor or "mask_token" in tensor:
            continue
        old = tensor.removeprefix("model.")
        if name == "internvl":
            for theirs, own in INTERNVL.items():
                old = old.replace(theirs, own)
            yield old, values
            continue
        if re.search(r"\.[qk]_proj\.", old):
            heads = values.reshape(sight["num_attention_heads"], 2, -1, values.shape[1])
            values = heads.swapaxes(1, 2).reshape(values.shape)
        yield names.get_name(old, try_suffixes=(".weight", ".bias")), values
    if name != "internvl":
        yield "v.token_embd.img_break", np.zeros(40)


RESAMPLER = {
    "vpm.": "v.", "encoder.layers": "blk", "embeddings.": "", "_proj": "", "self_attn.": "attn_",
    "layer_norm": "ln", "layernorm": "ln", "mlp.fc1": "ffn_down", "mlp.fc2": "ffn_up",
    "embedding": "embd",
}  # fmt: skip
"""Names that the converter of MiniCPM-V gives, in its order."""


def resampler_tensors(folder):
    """Yield the tensors of a MiniCPM-V as its converter has them."""
    for tensor, values in load_file(folder / "model.safetensors").items():
        if tensor.startswith("llm."):
            continue
        if tensor.startswith("resampler.attn.in_proj_"):
            for role, part in zip("qkv", np.split(values, 3), strict=True):
                yield tensor.replace("in_proj_", f"{role}."), part
            continue
        if tensor == "resampler.proj":
            yield "resampler.proj.weight", values.T
            yield "resampler.pos_embed_k", np.zeros((4, len(values)))
            continue
        for theirs, own in RESAMPLER.items():
            tensor = tensor.replace(theirs, own)
        yield tensor, values


def newer_tensors(name, folder, sight):
    """Yield the tensors of a LLaVA's or a Qwen's tower as the converter has them."""
    if name in ("pixtral", "mistral3", "internvl"):
        yield from squares_tensors(name, folder, sight)
        return
    if name == "minicpmv":
        yield from resampler_tensors(folder)
        return
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, 8)
    for tensor, values in load_file(folder / "model.safetensors").items():
        if name == "llava":
            last = f".layers.{sight['num_hidden_layers'] - 1}."
            if tensor.startswith("language_model") or last in tensor:
                continue
            old = tensor.replace("vision_tower.", "vision_tower.vision_model.")
            own = names.get_name(old, try_suffixes=(".weight", ".bias"))
            # as its older converter calls them
            yield own.replace("mm.1", "mm.0") if "linear_1" in old else own, values
            continue
        if "visual." not in tensor:
            continue
        old, (stem, end) = tensor.removeprefix("model."), tensor.rsplit(".", 1)
        merger = stem.partition("visual.merger.")[2]
        if merger:
            yield f"{MERGERS[merger]}.{end}", values
        elif "deepstack" in old:
            _, _, number, rest, _ = old.split(".")
            layer = sight["deepstack_visual_indexes"][int(number)]
            yield f"v.deepstack.{layer}.{rest.removeprefix('linear_')}.{end}", values
        elif old == "visual.patch_embed.proj.weight":
            yield "v.patch_embd.weight", values[:, :, 0]
            yield "v.patch_embd.weight.1", values[:, :, 1]
        elif "attn.qkv" in old and name not in QWEN3:
            for role, part in zip("qkv", np.split(values, 3), strict=True):
                block = names.get_name(old.replace("qkv", role), try_suffixes=(".weight", ".bias"))
                yield block, part
        else:
            yield names.get_name(old, try_suffixes=(".weight", ".bias")), values


def write_newer_tower(path, folder, name, kind, version):
    """Write the tower of a LLaVA, a Qwen or a MiniCPM-V of a version."""
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_string("clip.projector_type", kind or PROJECTORS[name])
    if name == "minicpmv":
        writer.add_int32("clip.minicpmv_version", version)
        writer.add_uint32("clip.minicpmv_query_num", 5)
    write_seeing(writer, folder, name)
    close_writer(writer)


def write_seeing(writer, folder, name):
    """Write what a tower has in a file, which may hold an encoder of sound, too."""
    sight = json.loads((folder / "config.json").read_text())["vision_config"]
    found, flags = newer_metadata(name, sight)
    for key, value in found.items():
        if value is not None:
            writer.add_uint32(f"clip.vision.{key}", int(value))
    for flag, value in flags.items():
        writer.add_bool(f"clip.use_{flag}", value)
    if name in QWEN3:
        deep = [n in sight["deepstack_visual_indexes"] for n in range(sight["depth"])]
        writer.add_array("clip.vision.is_deepstack_layers", deep)
    plain = name == "minicpmv"
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6 if plain else 1e-5)
    writer.add_array("clip.vision.image_mean", [0.5] * 3 if plain else list(CLIP_MEAN))
    writer.add_array("clip.vision.image_std", [0.5] * 3 if plain else list(CLIP_DEVIATION))
    for own, values in newer_tensors(name, folder, sight):
        writer.add_tensor(own, np.ascontiguousarray(values, np.float32))


def write_tower(path, folder, name, swapped=False, kind=None, version=3):
    """Write the tower as llama.cpp's converter does, by the names of the package gguf."""
    if name in PROJECTORS:
        write_newer_tower(path, folder, name, kind, version)
        return
    config = json.loads((folder / "config.json").read_text())
    sight = config["vision_config"]
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, sight["num_hidden_layers"])
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_string("clip.projector_type", kind or name)
    for key, value in {
        "image_size": sight["image_size"], "patch_size": sight["patch_size"],
        "embedding_length": sight["hidden_size"], "block_count": sight["num_hidden_layers"],
        "feed_forward_length": sight["intermediate_size"],
        "attention.head_count": sight["num_attention_heads"],
        "projector.scale_factor": 2,
    }.items():  # fmt: skip
        writer.add_uint32(f"clip.vision.{key}", value)
    if name == "idefics3":
        writer.add_uint32("clip.vision.preproc_image_size", 2 * sight["image_size"])
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    writer.add_bool("clip.use_gelu", True)
    writer.add_array("clip.vision.image_mean", [0.5] * 3)
    writer.add_array("clip.vision.image_std", [0.5] * 3)
    for tensor, values in load_file(folder / "model.safetensors").items():
        if any(part in tensor for part in ("language_model", "text_model", "lm_head", ".head.")):
            continue
        old = tensor
        if "multi_modal" in old or "vision_tower" in old:
            old = old.removeprefix("model.").replace("vision_tower.vision_model.", "vision_tower.")
            old = old.replace("vision_tower.", "vision_tower.vision_model.")
        own = names.get_name(old.replace("_weight", ".weight"), try_suffixes=(".weight", ".bias"))
        assert own is not None, tensor
        if swapped:
            own = own.replace("ffn_up", "x").replace("ffn_down", "ffn_up").replace("x", "ffn_down")
        values = values + 1 if "soft_emb_norm" in own else values
        writer.add_tensor(own, np.ascontiguousarray(values, np.float32))
    close_writer(writer)


@pytest.fixture(scope="module", params=list(TEXTS))
def written(request, tmp_path_factory):
    """A family's name, its folder, and the text model's file with the tower's beside it."""
    name, place = request.param, tmp_path_factory.mktemp(request.param)
    folder = place / "folder"
    folder.mkdir()
    getattr(vision_folders, name)(folder)
    if name == "minicpmv":  # files do not say how many slices there are
        rules = folder / "preprocessor_config.json"
        rules.write_text(json.dumps(json.loads(rules.read_text()) | {"max_slice_nums": 9}))
    write_text(place / "model.gguf", folder, TEXTS[name])
    write_tower(place / "mmproj-model-f32.gguf", folder, name)
    return name, folder, place / "model.gguf"


def sight_of_file(file):
    checkpoint = with_mmproj(open_checkpoint(file))
    return load_vision(checkpoint, vision_family(checkpoint), "f32")


def test_rows_are_those_of_the_folder(written):
    _, folder, file = written
    ours, theirs = sight_of_file(file), sight_of(folder)
    for size in SIZES[:2]:
        image = ours.processor.prepare(drawn(size))
        assert image.digest == theirs.processor.prepare(drawn(size)).digest
        assert np.allclose(ideal_rows(ours, image), ideal_rows(theirs, image), atol=1e-5)


def test_logits_in_float64_are_those_of_the_folder(written):
    """`test_vision.py` holds the folder's to transformers' in double."""
    name, folder, file = written
    places = ((with_mmproj(open_checkpoint(file)), sight_of_file(file)),
              (open_checkpoint(folder), sight_of(folder)))  # fmt: skip
    made = [places[0][1].processor.prepare(drawn(size)) for size in SIZES[:2]]
    ids = prompt_of(name, folder, made)
    ours, theirs = (ideal_logits(*place, made, ids) for place in places)
    assert np.abs(ours - theirs).max() < 1e-5 * np.abs(theirs).max()


def test_older_names_of_an_mlps_matrices_are_read(written, tmp_path):
    name, folder, file = written
    if name in PROJECTORS:
        pytest.skip("LLaVA's are; files of Qwen's towers never had them")
    (tmp_path / "model.gguf").write_bytes(file.read_bytes())
    write_tower(tmp_path / "mmproj.gguf", folder, name, swapped=True)
    image = sight_of(folder).processor.prepare(drawn((40, 70)))
    ours = ideal_rows(sight_of_file(tmp_path / "model.gguf"), image)
    assert np.allclose(ours, ideal_rows(sight_of(folder), image), atol=1e-5)


def test_answers_of_a_file_with_a_tower_are_the_folders(written):
    """By name, and by the folder that both files are in."""
    _, folder, file = written
    content = [{"image": drawn((40, 70))}, {"type": "text", "text": "what?"}]
    digests = []
    for place in (file, file.parent, folder):
        with cortiq.load(
            place, images=True, backend="cpu", threads=1, weight_format="f32"
        ) as model:
            made = model.chat([{"role": "user", "content": content}], max_tokens=3, **EXACT)
            digests.append((made.prompt_ids, made.token_ids))
    assert digests[0] == digests[1] == digests[2]


def test_a_conversion_says_that_the_tower_is_to_be_copied(written, tmp_path):
    _, _, file = written
    out, tower = tmp_path / "new.gguf", file.with_name("mmproj-model-f32.gguf")
    (said,) = convert_model(str(file), out, "keep").notes
    assert f"images and sounds need {tower.name}" in said
    shutil.copy(tower, tmp_path)
    digests = []
    for place in (file, out):
        with cortiq.load(place, images=True, backend="cpu", threads=1) as model:
            prompt = model.image_prompt("what?", [drawn((40, 70))])
            digests.append(model.generate(prompt, max_tokens=3, **EXACT).step_digests)
    assert digests[0] == digests[1]


def test_versions_of_minicpmv_that_are_not_read_are_refused(written, tmp_path):
    name, folder, file = written
    if name != "minicpmv":
        pytest.skip("others have no versions")
    (tmp_path / "model.gguf").write_bytes(file.read_bytes())
    write_tower(tmp_path / "mmproj.gguf", folder, name, version=2)
    with pytest.raises(UnsupportedError, match="version 2 of MiniCPM-V"):
        with_mmproj(open_checkpoint(tmp_path / "model.gguf"))


def test_what_is_no_tower_is_said(written, tmp_path):
    name, folder, file = written
    (tmp_path / "model.gguf").write_bytes(file.read_bytes())
    with pytest.raises(UnsupportedError, match="mmproj"):
        vision_family(with_mmproj(open_checkpoint(tmp_path / "model.gguf")))
    write_tower(tmp_path / "mmproj.gguf", folder, name, kind="other")
    with pytest.raises(UnsupportedError, match="projector 'other'"):
        with_mmproj(open_checkpoint(tmp_path / "model.gguf"))
    write_tower(tmp_path / "mmproj.gguf", folder, name)
    files = (file, tmp_path / "model.gguf")
    hashes = {with_mmproj(open_checkpoint(one)).model_hash() for one in files}
    assert open_checkpoint(file).model_hash() not in hashes
    write_tower(tmp_path / "b-mmproj.gguf", folder, name)
    with pytest.raises(FormatError, match="several towers"):
        with_mmproj(open_checkpoint(tmp_path / "model.gguf"))
