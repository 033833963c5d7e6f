"""Towers in llama.cpp's form: a file `mmproj*.gguf` beside a GGUF text model, read as a folder's.

Its metadata become the keys that config.json and the processor's file have, its tensors get the
names that folders have; everything else is what folders are read with.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cortiq.errors import FormatError, UnsupportedError
from cortiq.formats.checkpoint import TOWER, Checkpoint
from cortiq.formats.gguf import GGUFFile, open_gguf
from cortiq.formats.mapped import MappedTensors
from cortiq.formats.text_model import RenamedTensors, ReorderedTensors
from cortiq.hearing import mmproj as hearing
from cortiq.vision import mmproj_gemma3n
from cortiq.vision.config import SIGHT, TEXT
from cortiq.vision.image import CLIP_DEVIATION, CLIP_MEAN
from cortiq.vision.mmproj_forms import FORMS, VISION, Form

PATTERN = f"*{TOWER}*.gguf"
LAYER = re.compile(r"v\.blk\.(\d+)\.(\w+)\.(weight|bias)")
DEEP = re.compile(r"v\.deepstack\.(\d+)\.(\w+)\.(weight|bias)")
DEEP_NAMES = {"norm": "norm", "fc1": "linear_fc1", "fc2": "linear_fc2"}
HEADS = "attention.head_count"
FRAME = "v.patch_embd.weight"
"""The kernel of patches; that of a second frame has `.1` at its end."""


def towers_beside(path: Path) -> list[Path]:
    """Return the files with towers beside a GGUF model."""
    return sorted(path.parent.glob(PATTERN))


def with_mmproj(checkpoint: Any) -> Any:
    """Return a GGUF model with the tower, or the encoder of sound, in the file beside it; others
    as they are.

    Raises
    ------
    FormatError : there are several such files, or one lacks what a tower has.
    UnsupportedError : its projector is of no kind here.
    """
    if getattr(checkpoint, "kind", "") != "gguf" or not checkpoint.path.is_file():
        return checkpoint
    files = towers_beside(checkpoint.path)
    if not files:
        return checkpoint
    if len(files) > 1:
        listed = ", ".join(file.name for file in files)
        hint = f"leave one of them there: {listed}"
        raise FormatError("several towers lie beside the model", where=str(files[0]), hint=hint)
    file = open_gguf(files[0])
    kind = _kind_of(file)
    try:
        made = _fields_of(file, kind, checkpoint)
    except (KeyError, TypeError, ValueError, IndexError, ZeroDivisionError) as error:
        raise FormatError(f"is no tower: {error}", where=str(files[0])) from None
    return replace(checkpoint, _beside=(*checkpoint._beside, files[0]), **made)


def _kind_of(file: GGUFFile) -> str:
    names = ("clip.projector_type", "clip.vision.projector_type", "clip.audio.projector_type")
    kind = str(next((file.metadata[name] for name in names if name in file.metadata), None))
    known = (*FORMS, *hearing.FORMS, *mmproj_gemma3n.KINDS)
    if kind not in known:
        hint = f"supported: {', '.join(known)}; other towers are read from folders"
        raise UnsupportedError(f"a projector {kind!r}", where=str(file.path), hint=hint)
    return kind


def _fields_of(file: GGUFFile, kind: str, text: Checkpoint) -> dict[str, Any]:
    """Return the fields of a model that sees, hears, or does both."""
    if kind in mmproj_gemma3n.KINDS:
        return mmproj_gemma3n.fields_of(file, text)
    whole: dict[str, Any] = {}
    fields: dict[str, Any] = {"_all": file}
    if kind in hearing.FORMS:
        whole, fields["sound_rules"] = hearing.described(file, kind, text)
    if kind in FORMS:
        own, fields["image_rules"] = _described(file, FORMS[kind], text)
        whole |= own
        fields["_all"] = _renamed(file, FORMS[kind], kind in hearing.FORMS)
    if kind in hearing.FORMS:
        fields["_all"] = hearing.tensors_of(fields["_all"], kind)
    return {**fields, "whole": whole}


def _described(
    file: GGUFFile, form: Form, text: Checkpoint
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what config.json and the processor's file would say."""
    metadata, own = file.metadata, f"{text.architecture}."
    sight = {key: metadata[f"{VISION}{name}"] for name, key in form.fields.items()}
    gelu, silu = (metadata.get(f"clip.use_{name}", False) for name in ("gelu", "silu"))
    sight["hidden_act"] = "gelu_pytorch_tanh" if gelu else "silu" if silu else "quick_gelu"
    sight |= form.sight(file)
    table = file.tensors.get("v.position_embd.weight")
    if form.frames and table is not None:
        sight["num_position_embeddings"] = table.shape[0]
    if text.config.get(f"{own}embedding_scale", 1.0) != 1.0:
        what = "has a tower beside it, and scales the rows of its table"
        raise UnsupportedError(what, where=str(text.path), hint="take the model's folder")
    told = {"hidden_size": text.config[f"{own}embedding_length"]}
    window = text.config.get(f"{own}attention.sliding_window")
    told |= {} if window is None else {"sliding_window": int(window)}
    if f"{own}attention.layer_norm_rms_epsilon" in text.config:
        told["rms_norm_eps"] = float(text.config[f"{own}attention.layer_norm_rms_epsilon"])
    sections = text.config.get(f"{own}rope.dimension_sections")
    if sections is not None:
        told["rope_parameters"] = {"mrope_section": [int(n) for n in sections[:3]]}
    tokens: Sequence[str] = text.config["tokenizer.ggml.tokens"]
    if form.token not in tokens:
        raise FormatError(f"has no token {form.token!r}", where=str(text.path))
    rules = form.rules(metadata)
    for name in ("image_mean", "image_std"):
        if f"{VISION}{name}" in metadata:
            rules[name] = _as_in_folders([float(n) for n in metadata[f"{VISION}{name}"]])
    ids = {"image_token_id": tokens.index(form.token)}
    return {**form.keys(file), **ids, TEXT: told, SIGHT: sight}, rules


def _as_in_folders(channels: list[float]) -> list[float]:
    """Return the numbers of folders that a file has rounded to float32, others as they are."""
    known = (CLIP_MEAN, CLIP_DEVIATION)
    return next(
        (list(one) for one in known if np.array_equal(np.array(one, np.float32), channels)),
        channels,
    )


def _renamed(file: GGUFFile, form: Form, hears: bool) -> MappedTensors:
    """Return the tensors under the names that folders have; those of an encoder of sound, where
    the file has one, under their own.

    Older files call the first matrix of an MLP `ffn_down` and the second one `ffn_up`.
    """
    table = dict(form.in_layer)
    first = file.tensors.get("v.blk.0.ffn_up.weight")
    if first is not None and first.shape[0] == file.metadata.get(f"{VISION}embedding_length"):
        table |= {"ffn_up": form.in_layer["ffn_down"], "ffn_down": form.in_layer["ffn_up"]}
    deep = sorted({int(found[1]) for name in file.tensors if (found := DEEP.fullmatch(name))})
    names: dict[str, str] = {}
    for name in file.tensors:
        layer, (stem, _, end) = LAYER.fullmatch(name), name.rpartition(".")
        lower = DEEP.fullmatch(name)
        if hears and name.startswith(hearing.TENSORS):
            mine = name
        elif layer and layer[2] in table:
            end = "" if table[layer[2]] in form.bare else f".{layer[3]}"
            mine = f"{form.tower}{form.blocks}.{layer[1]}.{table[layer[2]]}{end}"
        elif lower and lower[2] in DEEP_NAMES:
            place = f"{form.tower}deepstack_merger_list.{deep.index(int(lower[1]))}"
            mine = f"{place}.{DEEP_NAMES[lower[2]]}.{lower[3]}"
        elif stem in form.outside:
            own = form.outside[stem]
            mine = f"{form.tower}{own}" if own in form.bare else f"{form.tower}{own}.{end}"
        elif stem in form.tensors:
            mine = f"{form.tensors[stem]}.{end}"
        else:
            mine = form.tensors.get(name, f"{form.tower}{name}")
        names[mine] = name
    made = FrameTensors(file, names) if form.frames else RenamedTensors(file, names)
    if not form.permuted:
        return made
    width, heads = (file.metadata[f"{VISION}{name}"] for name in ("embedding_length", HEADS))
    halves = np.arange(width // heads).reshape(-1, 2).T.reshape(-1)
    return ReorderedTensors(made, {rf".*\.{form.blocks}\.\d+\.{form.permuted}": halves})


class FrameTensors(RenamedTensors):
    """Renamed tensors, with the kernels of two frames as one: [outputs, channels, 2, …]."""

    def __init__(self, inner: MappedTensors, names: dict[str, str]) -> None:
        second = next((n for n, own in names.items() if own == f"{FRAME}.1"), None)
        if second is not None:
            del names[second]
        super().__init__(inner, names)
        self._kernel = next((n for n, own in names.items() if own == FRAME), "")
        if second is None or not self._kernel:
            self._kernel = ""
            return
        one, other = inner.tensors[FRAME], inner.tensors[f"{FRAME}.1"]
        if (one.shape, one.type) != (other.shape, other.type) or len(one.shape) != 4:
            what = f"{FRAME} is {list(one.shape)} of {one.type}, the second {list(other.shape)}"
            raise FormatError(what, where=str(inner.path))
        shape = (*one.shape[:2], 2, *one.shape[2:])
        self.tensors[self._kernel] = replace(one, shape=shape, nbytes=2 * one.nbytes)

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """Return the bytes of a tensor."""
        if name != self._kernel:
            return super().raw(name)
        frames = [self._inner.raw(own) for own in (FRAME, f"{FRAME}.1")]
        return np.stack(frames, axis=2)
