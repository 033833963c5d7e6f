"""Voxtral's folders as Mistral publishes them: params.json, and consolidated*.safetensors.

They are read as transformers' folders: configuration and tensors get the names of those. The rows
of queries and keys have pairs side by side.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cortiq.errors import FormatError, UnsupportedError, shown
from cortiq.formats.mapped import MappedTensors
from cortiq.formats.strict_json import read_object
from cortiq.formats.text_model import TEXT, RenamedTensors, ReorderedTensors

PARAMS, TEKKEN = "params.json", "tekken.json"
SOUND, AUDIO = "audio_config", "[AUDIO]"
COMMON: Mapping[str, str] = {
    "dim": "hidden_size", "n_layers": "num_hidden_layers", "hidden_dim": "intermediate_size",
    "n_heads": "num_attention_heads",
}  # fmt: skip
OF_TEXT: Mapping[str, str] = {
    **COMMON, "n_kv_heads": "num_key_value_heads", "norm_eps": "rms_norm_eps",
    "tied_embeddings": "tie_word_embeddings", "max_seq_len": "max_position_embeddings",
}  # fmt: skip
DEFAULTS: Mapping[str, Any] = {"model_type": "llama", "max_position_embeddings": 131072}
"""Of the text model, as transformers' conversion has them."""
USUAL: Mapping[str, Any] = {
    "causal": False, "pos_embed": "sinusoidal", "sliding_window": None, "bias": True,
}  # fmt: skip
"""Keys of the encoder that say what every one does; others are not Whisper's."""
PLACES = 1500
MOST = 1 << 16
"""The widest head that is read."""
ENCODER, LAYERS = "mm_whisper_embeddings.whisper_encoder.", r"layers\.(\d+)\."
NAMES: Mapping[str, str] = {
    r"output\.weight": "language_model.lm_head.weight",
    r"norm\.weight": "language_model.model.norm.weight",
    r"(?:mm_whisper_embeddings\.)?tok_embeddings\.weight":
        "language_model.model.embed_tokens.weight",
    **{
        rf"{LAYERS}{theirs}\.weight": rf"language_model.model.layers.\1.{mine}.weight"
        for theirs, mine in {
            **{f"attention.w{role}": f"self_attn.{role}_proj" for role in "qkvo"},
            "attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
            "feed_forward.w1": "mlp.gate_proj", "feed_forward.w2": "mlp.down_proj",
            "feed_forward.w3": "mlp.up_proj",
        }.items()
    },
    **{
        rf"{re.escape(ENCODER)}conv_layers\.{n}\.(\w+)": rf"audio_tower.conv{n + 1}.\1"
        for n in (0, 1)
    },
    rf"{re.escape(ENCODER)}transformer\.norm\.(\w+)": r"audio_tower.layer_norm.\1",
    **{
        rf"{re.escape(ENCODER)}transformer\.{LAYERS}{theirs}\.(weight|bias)":
            rf"audio_tower.layers.\1.{mine}.\2"
        for theirs, mine in {
            **{f"attention.w{role}": f"self_attn.{role}_proj" for role in "qkv"},
            "attention.wo": "self_attn.out_proj", "attention_norm": "self_attn_layer_norm",
            "ffn_norm": "final_layer_norm", "feed_forward.w1": "fc1", "feed_forward.w2": "fc2",
        }.items()
    },
    r"mm_whisper_embeddings\.audio_language_projection\.0\.weight":
        "multi_modal_projector.linear_1.weight",
    r"mm_whisper_embeddings\.audio_language_projection\.2\.weight":
        "multi_modal_projector.linear_2.weight",
}  # fmt: skip
"""Names in transformers' folders, by regular expressions of Mistral's."""


def is_mistral_folder(folder: Path) -> bool:
    """Return whether a folder is in Mistral's own form."""
    return (folder / PARAMS).is_file() and any(folder.glob("consolidated*.safetensors"))


def mistral_config(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what config.json and preprocessor_config.json would say.

    Raises
    ------
    FormatError : a key is missing, or is no number.
    UnsupportedError : the model is no Voxtral, or one whose encoder is not Whisper's.
    """
    where = str(folder / PARAMS)
    given = read_object(folder / PARAMS)
    parts = given.pop("multimodal", None)
    if not isinstance(parts, dict) or "whisper_model_args" not in parts:
        hint = "take the folder with config.json"
        raise UnsupportedError("of Mistral's own form, Voxtral alone is read", where=where,
                               hint=hint)  # fmt: skip
    try:
        sound, factor = _encoder(parts["whisper_model_args"], where)
        rules = _rules(sound, where)
        text = {**DEFAULTS, **{OF_TEXT.get(key, key): value for key, value in given.items()}}
        heads, width = sound["num_attention_heads"], sound["hidden_size"]
        if factor * width != sound["intermediate_size"]:
            what = f"{factor} rows of {width} side by side: {sound['intermediate_size']} are meant"
            raise UnsupportedError(what, where=where)
        if sound.pop("head_dim", None) not in (None, width / heads):
            raise UnsupportedError(f"{heads} heads that do not share {width}", where=where)
    except (KeyError, TypeError, AttributeError, ZeroDivisionError, OverflowError) as error:
        raise FormatError(f"is no Voxtral's: {error}", where=where) from None
    whole = {
        "model_type": "voxtral", TEXT: text, SOUND: sound, "projector_hidden_act": "gelu",
        "audio_token_id": special_token(folder, AUDIO),
    }  # fmt: skip
    return whole, rules


def _encoder(args: Mapping[str, Any], where: str) -> tuple[dict[str, Any], int]:
    """Return the encoder's keys, and how many of its rows are side by side."""
    sound = {COMMON.get(key, key): value for key, value in args["encoder_args"].items()}
    for key, usual in USUAL.items():
        if (value := sound.pop(key, usual)) != usual:
            what = f"an encoder with {key} = {shown(value)}"
            raise UnsupportedError(what, where=where, hint="Voxtral of 2025 is read")
    if sound.get("max_source_positions") is None:
        sound["max_source_positions"] = PLACES
    return sound, args["downsample_args"]["downsample_factor"]


def _rules(sound: dict[str, Any], where: str) -> dict[str, Any]:
    """Return the rules of features, with windows that the encoder has rows for."""
    audio = sound.pop("audio_encoding_args")
    sound["num_mel_bins"] = bands = audio["num_mel_bins"]
    rate, hop = audio["sampling_rate"], audio["hop_length"]
    seconds, rest = divmod(2 * sound["max_source_positions"] * hop, rate)
    if rest:
        what = f"{sound['max_source_positions']} places of {2 * hop} samples: no whole seconds"
        raise FormatError(what, where=where)
    return {
        "feature_size": bands, "sampling_rate": rate, "hop_length": hop,
        "n_fft": audio["window_size"], "chunk_length": seconds,
    }  # fmt: skip


def special_token(folder: Path, text: str) -> int:
    """Return the id of a special token, which the tokenizer's file says."""
    special = read_object(folder / TEKKEN).get("special_tokens")
    entries = [one for one in special if isinstance(one, dict)] if isinstance(special, list) else []
    found = [entry.get("rank") for entry in entries if entry.get("token_str") == text]
    if len(found) != 1 or type(found[0]) is not int:
        raise FormatError(f"has not one token {text!r}", where=str(folder / TEKKEN))
    return found[0]


def mistral_tensors(inner: MappedTensors, whole: Mapping[str, Any], where: str) -> MappedTensors:
    """Return a folder's tensors with the names, and the order of rows, of transformers' folders.

    Raises
    ------
    UnsupportedError : one is of no part of a Voxtral.
    FormatError : two are the same, or heads have no size.
    """
    names: dict[str, str] = {}
    for name in inner.tensors:
        found = ((re.fullmatch(form, name), mine) for form, mine in NAMES.items())
        mine = next((match.expand(mine) for match, mine in found if match), None)
        if mine is None:
            raise UnsupportedError(f"a tensor {name!r}, which no Voxtral has", where=where)
        if mine in names:
            raise FormatError(f"{name!r} and {names[mine]!r} are the same", where=where)
        names[mine] = name
    text = whole[TEXT]
    heads = _whole(text.get("num_attention_heads"), where)
    dim = text.get("head_dim") or _whole(text.get("hidden_size"), where) // heads
    if _whole(dim, where) % 2 or dim > MOST:
        raise FormatError(f"a head has {dim} values", where=where)
    halves = np.arange(dim).reshape(-1, 2).T.reshape(-1)
    form = r"language_model\.model\.layers\.\d+\.self_attn\.[qk]_proj\.weight"
    return ReorderedTensors(FolderTensors(inner, names), {form: halves})


def _whole(value: object, where: str) -> int:
    if type(value) is not int or value < 1:
        raise FormatError(f"a size is {shown(value)}", where=where)
    return value


class FolderTensors(RenamedTensors):
    """Renamed tensors whose names are those that a new folder has."""

    def name_within(self, name: str) -> str:
        """Return the name of a tensor in transformers' folders."""
        return name
