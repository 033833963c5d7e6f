"""Towers in llama.cpp's form: a file `mmproj*.gguf` beside a GGUF text model, read as a folder's.

Its metadata become the keys that config.json and the processor's file have, its tensors get the
names that folders have; everything else is what folders are read with.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cortiq.errors import FormatError, UnsupportedError
from cortiq.formats.checkpoint import TOWER, Checkpoint
from cortiq.formats.gguf import GGUFFile, open_gguf
from cortiq.formats.mapped import MappedTensors
from cortiq.formats.text_model import RenamedTensors
from cortiq.vision.config import SIGHT, TEXT
from cortiq.vision.image import RESAMPLING

PATTERN = f"*{TOWER}*.gguf"
LAYER = re.compile(r"v\.blk\.(\d+)\.(\w+)\.(weight|bias)")
IN_LAYER: Mapping[str, str] = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_out": "self_attn.out_proj", "ln1": "layer_norm1", "ln2": "layer_norm2",
    "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2",
}  # fmt: skip
OUTSIDE: Mapping[str, str] = {
    "v.patch_embd": "embeddings.patch_embedding",
    "v.position_embd": "embeddings.position_embedding", "v.post_ln": "post_layernorm",
}  # fmt: skip
FIELDS: Mapping[str, str] = {
    "embedding_length": "hidden_size", "feed_forward_length": "intermediate_size",
    "block_count": "num_hidden_layers", "attention.head_count": "num_attention_heads",
    "image_size": "image_size", "patch_size": "patch_size",
    "attention.layer_norm_epsilon": "layer_norm_eps",
}  # fmt: skip
NUMBERS = {name: number for number, name in RESAMPLING.items()}


@dataclass(frozen=True)
class Form:
    """A kind of such a file.

    Attributes
    ----------
    token : text of the token whose rows are an image's. tower : prefix of the tower in folders.
    tensors : of the projector, by name in the file. keys : further keys of config.json.
    rules : of the processor's file.
    """

    token: str
    tower: str
    tensors: Mapping[str, str]
    keys: Callable[[Mapping[str, Any]], dict[str, Any]]
    rules: Callable[[Mapping[str, Any]], dict[str, Any]]


def _gemma3_keys(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return rows of an image: squares of 4 × 4 patches unless the file says; norms hold 1 + w."""
    side = metadata["clip.vision.image_size"] // metadata["clip.vision.patch_size"]
    pool = metadata.get("clip.vision.projector.scale_factor", 4)
    return {
        "model_type": "gemma3", "mm_tokens_per_image": (side // pool) ** 2, "soft_offset": 0.0,
    }  # fmt: skip


def _gemma3_rules(metadata: Mapping[str, Any]) -> dict[str, Any]:
    edge = metadata["clip.vision.image_size"]
    return {"size": {"height": edge, "width": edge}, "resample": NUMBERS["bilinear"]}


def _idefics3_rules(metadata: Mapping[str, Any]) -> dict[str, Any]:
    edge = metadata["clip.vision.image_size"]
    longest = metadata.get("clip.vision.preproc_image_size", 4 * edge)
    return {
        "size": {"longest_edge": longest}, "max_image_size": {"longest_edge": edge},
        "resample": NUMBERS["lanczos"],
    }  # fmt: skip


FORMS: Mapping[str, Form] = {
    "gemma3": Form(
        "<image_soft_token>", "vision_tower.vision_model.",
        {
            "mm.input_projection.weight": "multi_modal_projector.mm_input_projection_weight",
            "mm.soft_emb_norm.weight": "multi_modal_projector.mm_soft_emb_norm.weight",
        },
        _gemma3_keys, _gemma3_rules,
    ),
    "idefics3": Form(
        "<image>", "model.vision_model.",
        {"mm.model.fc.weight": "model.connector.modality_projection.proj.weight"},
        lambda metadata: {
            "model_type": "idefics3",
            "scale_factor": metadata.get("clip.vision.projector.scale_factor", 4),
        },
        _idefics3_rules,
    ),
}  # fmt: skip
"""By `clip.projector_type`."""


def with_mmproj(checkpoint: Any) -> Any:
    """Return a GGUF model with the tower in the file beside it; others as they are.

    Raises
    ------
    FormatError : there are several such files, or one lacks what a tower has.
    UnsupportedError : its projector is of no kind here.
    """
    if getattr(checkpoint, "kind", "") != "gguf" or not checkpoint.path.is_file():
        return checkpoint
    files = sorted(checkpoint.path.parent.glob(PATTERN))
    if not files:
        return checkpoint
    if len(files) > 1:
        listed = ", ".join(file.name for file in files)
        hint = f"leave one of them there: {listed}"
        raise FormatError("several towers lie beside the model", where=str(files[0]), hint=hint)
    file = open_gguf(files[0])
    form = _form_of(file)
    try:
        whole, rules = _described(file, form, checkpoint)
    except (KeyError, TypeError, ZeroDivisionError) as error:
        raise FormatError(f"is no tower: {error}", where=str(files[0])) from None
    return replace(
        checkpoint, whole=whole, image_rules=rules, _all=_renamed(file, form),
        _beside=(*checkpoint._beside, files[0]),
    )  # fmt: skip


def _form_of(file: GGUFFile) -> Form:
    names = ("clip.projector_type", "clip.vision.projector_type")
    kind = str(next((file.metadata[name] for name in names if name in file.metadata), None))
    if kind not in FORMS:
        hint = f"supported: {', '.join(FORMS)}; other towers are read from folders"
        raise UnsupportedError(f"a projector {kind!r}", where=str(file.path), hint=hint)
    return FORMS[kind]


def _described(
    file: GGUFFile, form: Form, text: Checkpoint
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what config.json and the processor's file would say."""
    metadata, own = file.metadata, f"{text.architecture}."
    sight = {key: metadata[f"clip.vision.{name}"] for name, key in FIELDS.items()}
    gelu, silu = (metadata.get(f"clip.use_{name}", False) for name in ("gelu", "silu"))
    sight["hidden_act"] = "gelu_pytorch_tanh" if gelu else "silu" if silu else "quick_gelu"
    told = {"hidden_size": text.config[f"{own}embedding_length"]}
    window = text.config.get(f"{own}attention.sliding_window")
    told |= {} if window is None else {"sliding_window": int(window)}
    tokens: Sequence[str] = text.config["tokenizer.ggml.tokens"]
    if form.token not in tokens:
        raise FormatError(f"has no token {form.token!r}", where=str(text.path))
    rules = form.rules(metadata)
    for name in ("image_mean", "image_std"):
        if f"clip.vision.{name}" in metadata:
            rules[name] = [float(n) for n in metadata[f"clip.vision.{name}"]]
    ids = {"image_token_id": tokens.index(form.token)}
    return {**form.keys(metadata), **ids, TEXT: told, SIGHT: sight}, rules


def _renamed(file: GGUFFile, form: Form) -> MappedTensors:
    """Return the tensors under the names that folders have.

    Older files call the first matrix of an MLP `ffn_down` and the second one `ffn_up`.
    """
    table = dict(IN_LAYER)
    first = file.tensors.get("v.blk.0.ffn_up.weight")
    if first is not None and first.shape[0] == file.metadata.get("clip.vision.embedding_length"):
        table |= {"ffn_up": IN_LAYER["ffn_down"], "ffn_down": IN_LAYER["ffn_up"]}
    names: dict[str, str] = {}
    for name in file.tensors:
        layer, (stem, _, end) = LAYER.fullmatch(name), name.rpartition(".")
        if layer and layer[2] in table:
            mine = f"{form.tower}encoder.layers.{layer[1]}.{table[layer[2]]}.{layer[3]}"
        elif stem in OUTSIDE:
            mine = f"{form.tower}{OUTSIDE[stem]}.{end}"
        else:
            mine = form.tensors.get(name, f"{form.tower}{name}")
        names[mine] = name
    return RenamedTensors(file, names)
