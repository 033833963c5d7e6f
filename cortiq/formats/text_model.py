"""The text model of a folder that holds several models: vision, audio and text.

Its configuration is the object `text_config`; its tensors have a prefix, as written by transformers
since 4.52 or before. The other models' tensors are left out. The first folders of Qwen 2 and 2.5 VL
have the text model's keys at the top, beside `vision_config`, and its tensors under plain names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from cortiq.errors import FormatError, UnsupportedError
from cortiq.formats.mapped import MappedTensors, TensorInfo
from cortiq.formats.packed_tensors import PackedTensor
from cortiq.formats.quantisation import KEYS

TEXT, SIGHT = "text_config", "vision_config"
THINKER = "thinker_config"
"""Section of Qwen Omni's configuration for the model that reads and writes text."""
TIED = "tie_word_embeddings"
HEAD = "lm_head."
NAME_PREFIXES: tuple[Mapping[str, str], ...] = (
    {"model.language_model.": "model.", HEAD: HEAD, "mtp.": "mtp."},
    {"language_model.model.": "model.", "language_model.lm_head.": HEAD, HEAD: HEAD},
    {"model.text_model.": "model.", HEAD: HEAD},
    {"thinker.model.": "model.", "thinker.lm_head.": HEAD},
    {"llm.model.": "model.", "llm.lm_head.": HEAD},
    {
        **{f"model.{part}.": f"model.{part}." for part in ("layers", "embed_tokens", "norm")},
        HEAD: HEAD,
    },
    {
        "layers.": "model.layers.", "tok_embeddings.": "model.embed_tokens.",
        "norm.": "model.norm.", "output.": HEAD, "lerope.": "model.rotary_emb.",
    },
)  # fmt: skip
"""Name prefixes in the folder, and in a text-only checkpoint."""
NESTED_LAYERS = ("model.language_model.layers.", "language_model.model.layers.")
OF_IMAGES = ("image_token", "video_token", "vision_")
MINICPM_V = "minicpmv"
MINICPM_TEXTS: Mapping[Any, str] = {2.6: "qwen2", 4.0: "llama", 4.5: "qwen3"}
"""Text models of MiniCPM-V by its version, which alone tells them apart."""
TEXTS: Mapping[str, Mapping[str, str]] = {"kimi_k3": {"model_type": "kimi_k3_text"}}
"""What text models are that have the name of another family, by the type of the whole folder."""
OF_MINICPM = frozenset({
    "batch_3d_resampler", "batch_vision_input", "drop_vision_last_layer", "image_size",
    "patch_size", "query_num", "slice_config", "slice_mode", "use_image_id", "version",
})  # fmt: skip
"""Keys of MiniCPM-V beside its text model's."""
EXTENDED: Mapping[str, tuple[str, str]] = {
    SIGHT: ("embd_layer", "image_embd_layer"), "audio_config": ("audio_processor", "config"),
}  # fmt: skip
"""Keys under which Phi-4 multimodal, as published, says what its encoders are, by section."""
SHARED_KEYS = (TIED, *KEYS)
"""Keys that the whole folder's configuration may hold for the text model."""


class RenamedTensors(MappedTensors):
    """Renamed tensors of a folder; `names` maps each new name to the folder's."""

    def __init__(self, inner: MappedTensors, names: Mapping[str, str]) -> None:
        tensors = {name: inner.tensors[own] for name, own in names.items()}
        super().__init__(inner.path, inner.paths, tensors, inner._buffers)
        self._inner, self._names = inner, names

    def name_within(self, name: str) -> str:
        """Return the folder's name of a tensor."""
        return within(self._inner, self._names[name])

    def joined(self, name: str) -> PackedTensor | None:
        """Return the quantised matrix of this name, or None for an ordinary tensor."""
        return getattr(self._inner, "joined", lambda _: None)(self._names[name])

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """Return the bytes of a tensor."""
        return self._inner.raw(self._names.get(name, name))

    def close(self) -> None:
        """Release the files."""
        super().close()
        self._inner.close()


def within(tensors: MappedTensors, name: str) -> str:
    """Return the folder's name of one of its tensors, which may be renamed."""
    return tensors.name_within(name) if isinstance(tensors, RenamedTensors) else name


class ReorderedTensors(RenamedTensors):
    """Tensors some of whose rows, or elements of vectors, are in another order.

    Attributes
    ----------
    orders : the order of every so many rows, by a regular expression of names.
    """

    def __init__(self, inner: MappedTensors, orders: Mapping[str, npt.NDArray[np.int64]]) -> None:
        super().__init__(inner, {name: name for name in inner.tensors})
        self.orders = orders

    def joined(self, name: str) -> PackedTensor | None:
        """Return the quantised matrix of this name; UnsupportedError where it has another order."""
        found = super().joined(name)
        if found is not None and self._order(name) is not None:
            what = f"{name} is quantised: its rows are needed in another order"
            raise UnsupportedError(what, where=str(self.path))
        return found

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """Return the bytes of a tensor in the order of its rows."""
        raw, order, shape = super().raw(name), self._order(name), self.tensors[name].shape
        if order is None:
            return raw
        rows = raw.reshape(shape[0], -1)
        if shape[0] % len(order):
            raise FormatError(f"{name} has {shape[0]} rows", where=str(self.path))
        return rows.reshape(-1, len(order), rows.shape[1])[:, order].reshape(raw.shape)

    def _order(self, name: str) -> npt.NDArray[np.int64] | None:
        return next((o for form, o in self.orders.items() if re.fullmatch(form, name)), None)


class AddedTensors(RenamedTensors):
    """Tensors of a folder, and others that were computed of them: float32."""

    def __init__(self, inner: MappedTensors, made: Mapping[str, npt.NDArray[np.float32]]) -> None:
        super().__init__(inner, {name: name for name in inner.tensors})
        self._made = {name: np.ascontiguousarray(array, "<f4") for name, array in made.items()}
        for name, array in self._made.items():
            size = array.shape[-1] * 4
            self.tensors[name] = TensorInfo(name, array.shape, "F32", 0, 0, array.nbytes, size)

    def name_within(self, name: str) -> str:
        """Return the folder's name of a tensor; a computed one has its own."""
        return name if name in self._made else super().name_within(name)

    def joined(self, name: str) -> PackedTensor | None:
        """Return the quantised matrix of this name, or None for an ordinary tensor."""
        return None if name in self._made else super().joined(name)

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """Return the bytes of a tensor."""
        return self._made[name].view(np.uint8) if name in self._made else super().raw(name)


def with_sections(config: dict[str, Any]) -> dict[str, Any]:
    """Return a config.json with the sections `vision_config` and `audio_config`, where its authors
    call them otherwise: Phi-4 multimodal as published.
    """
    found: dict[str, Any] = {}
    for section, (outer, inner) in EXTENDED.items():
        layers = config.get(outer)
        part = layers.get(inner) if isinstance(layers, dict) else None
        found |= {section: part} if isinstance(part, dict) else {}
    return {**found, **config}


def has_text_model(config: Mapping[str, Any]) -> bool:
    """Return whether a config.json is of several models, one of them for text."""
    return isinstance(thinking(config).get(TEXT), dict) or _is_flat(config)


def thinking(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a configuration that holds the text model's."""
    part = config.get(THINKER)
    return part if isinstance(part, Mapping) else config


def text_section(config: dict[str, Any]) -> dict[str, Any]:
    """Return the object of a config.json that has the text model's keys."""
    part = config.get(THINKER, config)
    found: dict[str, Any] = part.get(TEXT, part)
    return found


def _is_flat(config: Mapping[str, Any]) -> bool:
    """Return whether the text model's keys are at the top, beside those of the vision model."""
    return TEXT not in config and isinstance(config.get(SIGHT), dict) and "hidden_size" in config


def is_nested(tensors: MappedTensors) -> bool:
    """Return whether a folder's tensors have the names of a text model among others, and none the
    plain ones: text-only exports keep the prefixes under a configuration of the text model alone.
    """
    names = tensors.tensors
    if any(name.startswith("model.layers.") for name in names):
        return False
    return any(name.startswith(NESTED_LAYERS) for name in names)


BARE: tuple[Mapping[str, str], ...] = (
    {"transformer.": ""},
    {
        "layers.": "model.layers.", "embed_tokens.": "model.embed_tokens.", "norm.": "model.norm.",
        "embed.": "model.embed_tokens.", "hc_head_": "model.hc_head.hc_", "head.": "lm_head.",
    },
    {"head.": "lm_head."},
)  # fmt: skip
"""Prefixes of a model without a head, which folders have or lack: what begins so, and the name that
families know it by."""


def with_usual_prefix(tensors: MappedTensors) -> MappedTensors:
    """Return the tensors under the names of a model with a head, where they were saved otherwise.

    GPT-2's and BLOOM's hub folders lack the prefix `transformer.`; embedding models and DeepSeek V4
    lack `model.`. Tensors without a table are a block drafter's, whose names are so.
    """
    names = tensors.tensors
    for form in BARE:
        first = next(iter(form))
        if any(name.startswith(first) for name in names) and any(map(_is_table, names)):
            own = {_replaced(name, form): name for name in names}
            return RenamedTensors(tensors, own) if len(own) == len(names) else tensors
    return tensors


TABLES = (
    "wte.weight", "word_embeddings.weight", "embed_tokens.weight", "embed.weight",
    "model.embed_tokens.weight", "tokens_embed.weight",
)  # fmt: skip


def _is_table(name: str) -> bool:
    return name.removeprefix("transformer.") in TABLES


def _replaced(name: str, form: Mapping[str, str]) -> str:
    for theirs, mine in form.items():
        if name.startswith(theirs):
            return mine + name.removeprefix(theirs)
    return name


def text_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the text model's configuration, overridden by shared keys of the whole folder's.

    That of a flat one is what does not speak of images; its `model_type` has `_text` added, or is
    that of the text model which the version says.
    """
    if _is_flat(config):
        kept = {k: v for k, v in config.items() if k != SIGHT and not k.startswith(OF_IMAGES)}
        kind = f"{config.get('model_type')}_text"
        if config.get("model_type") == MINICPM_V:
            kept = {key: value for key, value in kept.items() if key not in OF_MINICPM}
            version = config.get("version")
            kind = MINICPM_TEXTS.get(version, kind) if isinstance(version, float | int) else kind
        return kept | {"model_type": kind}
    part = thinking(config)
    named = TEXTS.get(str(config.get("model_type")), {})
    both = {**config, **part}
    whole = {key: both[key] for key in SHARED_KEYS if both.get(key) is not None}
    return {**part[TEXT], **whole, **named}


def text_tensors(tensors: MappedTensors) -> RenamedTensors:
    """Return the text model's tensors under the names of a text-only checkpoint."""
    forms = (renamed(tensors.tensors, form) for form in NAME_PREFIXES)
    return RenamedTensors(tensors, max(forms, key=len))


def renamed(names: Iterable[str], prefixes: Mapping[str, str]) -> dict[str, str]:
    """Return the names that begin with one of some prefixes, by what they become with another;
    of several prefixes the first counts.
    """
    found: dict[str, str] = {}
    for name in names:
        prefix = next((own for own in prefixes if name.startswith(own)), None)
        if prefix is not None:
            found[prefixes[prefix] + name.removeprefix(prefix)] = name
    return found


def with_tie(config: dict[str, Any], tensors: MappedTensors) -> dict[str, Any]:
    """Return the configuration with `tie_word_embeddings` set: true for a folder without a head.

    If it is absent, the default of the whole folder's class counts, not that of the text model's.
    """
    tied = not any(name.startswith(HEAD) for name in tensors.tensors)
    return {TIED: tied, **config}
