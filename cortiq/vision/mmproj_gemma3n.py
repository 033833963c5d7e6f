"""Gemma 3n's tower and encoder of sound in llama.cpp's form: one file, a kind for each sense.

Keys and tensors get the names that folders have. What no such file says is as in the published
models: windows of attention, rows of a sound, rules of its features.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cortiq.errors import FormatError, UnsupportedError
from cortiq.formats.checkpoint import Checkpoint
from cortiq.formats.gguf import GGUFFile
from cortiq.formats.text_model import RenamedTensors
from cortiq.hearing.config import SOUND
from cortiq.hearing.gemma3n import AUDIO
from cortiq.hearing.gemma3n import END as AUDIO_END
from cortiq.hearing.mmproj import AUDIO as HEARS
from cortiq.vision.config import SIGHT, TEXT
from cortiq.vision.gemma3n import END, IMAGE
from cortiq.vision.mmproj_keys import NUMBERS, VISION

SEES_AS, HEARS_AS = "gemma3nv", "gemma3na"
KINDS = (SEES_AS, HEARS_AS)
TOWER, ENCODER = "vision_tower.timm_model.", "audio_tower."
STEM_BIAS = "v.conv_stem.conv.bias"
"""A tensor that a file has as [1, channels, 1, 1]."""
CONVOLUTIONS = ("a.conv1d.0", "a.conv1d.1")
PROJECTOR: Mapping[str, str] = {
    "embedding": "embedding", "input_projection": "embedding_projection",
    "soft_emb_norm": "soft_embedding_norm", "hard_emb_norm": "hard_embedding_norm",
}  # fmt: skip
OUTSIDE: Mapping[str, str] = {
    **{f"mm.{name}": f"embed_vision.{own}" for name, own in PROJECTOR.items()},
    **{f"mm.a.{name}": f"embed_audio.{own}" for name, own in PROJECTOR.items()},
    **{f"a.conv1d.{n}{name}": f"{ENCODER}subsample_conv_projection.conv_{n}.{own}"
       for n in (0, 1) for name, own in (("", "conv"), (".norm", "norm"))},
    "a.pre_encode.out": f"{ENCODER}subsample_conv_projection.input_proj_linear",
}  # fmt: skip
FEED_FORWARD: Mapping[str, str] = {
    "ffn_up": "ffw_layer_1", "ffn_down": "ffw_layer_2", "ffn_norm": "pre_layer_norm",
    "ffn_post_norm": "post_layer_norm",
}  # fmt: skip
IN_LAYER: Mapping[str, str] = {
    **{f"{name}{end}": f"ffw_layer_{place}.{own}" for name, own in FEED_FORWARD.items()
       for end, place in (("", "start"), ("_1", "end"))},
    **{f"attn_{role}": f"attention.attn.{role}_proj" for role in "qkv"},
    "attn_out": "attention.post", "ln1": "attention.pre_attn_norm", "ln2": "attention.post_norm",
    "linear_pos": "attention.attn.relative_position_embedding.pos_proj",
    "per_dim_scale": "attention.attn.per_dim_scale", "conv_norm": "lconv1d.pre_layer_norm",
    "conv_dw": "lconv1d.depthwise_conv1d", "norm_conv": "lconv1d.conv_norm",
    "conv_pw1": "lconv1d.linear_start", "conv_pw2": "lconv1d.linear_end", "layer_pre_norm": "norm",
}  # fmt: skip
LAYER = re.compile(r"a\.blk\.(\d+)\.(\w+)(\.\w+)?")


def fields_of(file: GGUFFile, text: Checkpoint) -> dict[str, Any]:
    """Return the fields of a text model that sees and hears with a file, or does one of both.

    Raises
    ------
    KeyError, IndexError, TypeError, ValueError, ZeroDivisionError : the file lacks something, or
        has it in another form.
    FormatError : it belongs to another text model.
    UnsupportedError : a projector for one of the senses is of another family.
    """
    senses = (VISION, SEES_AS), (HEARS, HEARS_AS)
    named = file.metadata.get("clip.projector_type")
    kinds = {start: file.metadata.get(f"{start}projector_type", named) for start, _ in senses}
    width = int(text.config[f"{text.architecture}.embedding_length"])
    tokens: Sequence[str] = text.config["tokenizer.ggml.tokens"]
    whole: dict[str, Any] = {"model_type": "gemma3n"}
    whole[TEXT] = {"hidden_size": width, "vocab_size": len(tokens)}
    fields: dict[str, Any] = {"_all": _renamed(file), "whole": whole}
    for start, known in senses:
        if (kind := kinds[start]) is None or (kind != known and kind == named):
            continue
        if kind != known:
            hint = f"with {SEES_AS} and {HEARS_AS} alone"
            raise UnsupportedError(f"a projector {kind!r}", where=str(file.path), hint=hint)
        if (made := file.metadata[f"{start}projection_dim"]) != width:
            what = f"makes rows of {made} values, those of {text.path.name} have {width}"
            hint = "it belongs to another text model"
            raise FormatError(what, where=str(file.path), hint=hint)
    if kinds[VISION] == SEES_AS:
        ids = _ids_of(text, tokens, image_token_id=IMAGE, eoi_token_id=END)
        whole |= ids | _sight(file, ids["eoi_token_id"])
        fields["image_rules"] = _image_rules(file)
    if kinds[HEARS] == HEARS_AS:
        ids = _ids_of(text, tokens, audio_token_id=AUDIO, eoa_token_id=AUDIO_END)
        whole |= ids | _sound(file, ids["eoa_token_id"])
        fields["sound_rules"] = {"feature_size": int(file.metadata[f"{HEARS}num_mel_bins"])}
    return fields


def _ids_of(text: Checkpoint, tokens: Sequence[str], **wanted: str) -> dict[str, int]:
    for token in wanted.values():
        if token not in tokens:
            raise FormatError(f"has no token {token!r}", where=str(text.path))
    return {key: tokens.index(token) for key, token in wanted.items()}


def _sight(file: GGUFFile, first: int) -> dict[str, Any]:
    """Return keys of the tower, whose vocabulary begins with the token behind an image.

    A patch has as many pixels along its side as the whole image's side has for a row of the text.
    """
    values = (file.metadata[f"{VISION}{n}"] for n in ("embedding_length", "image_size",
                                                       "patch_size"))  # fmt: skip
    width, edge, patch = map(int, values)
    sight = {
        "hidden_size": width, "vocab_size": file.tensors["mm.embedding.weight"].shape[0],
        "vocab_offset": first,
    }  # fmt: skip
    return {SIGHT: sight, "vision_soft_tokens_per_image": edge // patch}


def _image_rules(file: GGUFFile) -> dict[str, Any]:
    edge = int(file.metadata[f"{VISION}image_size"])
    names = ("image_mean", "image_std")
    channels = {name: [float(n) for n in file.metadata[f"{VISION}{name}"]] for name in names}
    return {
        "size": {"height": edge, "width": edge}, "resample": NUMBERS["bilinear"], **channels,
    }  # fmt: skip


def _sound(file: GGUFFile, first: int) -> dict[str, Any]:
    """Return keys of the encoder, whose vocabulary begins with the token behind a sound."""
    names = {
        "embedding_length": "hidden_size", "block_count": "conf_num_hidden_layers",
        "attention.head_count": "conf_num_attention_heads", "num_mel_bins": "input_feat_size",
    }  # fmt: skip
    sound: dict[str, Any] = {
        key: int(file.metadata[f"{HEARS}{name}"]) for name, key in names.items()
    }
    channels = [file.tensors[f"{name}.weight"].shape[0] for name in CONVOLUTIONS]
    sound |= {
        "sscp_conv_channel_size": channels, "vocab_offset": first,
        "conf_conv_kernel_size": file.tensors["a.blk.0.conv_dw.weight"].shape[-1],
        "vocab_size": file.tensors["mm.a.embedding.weight"].shape[0],
    }  # fmt: skip
    return {SOUND: sound}


def _renamed(file: GGUFFile) -> RenamedTensors:
    """Return the tensors under the names that folders have; unknown ones stay in their tower."""
    names: dict[str, str] = {}
    for name in file.tensors:
        stem, _, end = name.rpartition(".")
        layer = LAYER.fullmatch(name)
        if layer and layer[2] in IN_LAYER:
            mine = f"{ENCODER}conformer.{layer[1]}.{IN_LAYER[layer[2]]}{layer[3] or ''}"
        elif stem in OUTSIDE:
            mine = f"{OUTSIDE[stem]}.{end}"
        elif name.startswith("v."):
            mine = TOWER + re.sub(r"^v\.(blk\.)?", lambda m: "blocks." if m[1] else "", name)
        else:
            mine = f"{ENCODER}{name}" if name.startswith("a.") else name
        names[mine] = name
    made = RenamedTensors(file, names)
    bias = file.tensors.get(STEM_BIAS)
    if bias is not None and bias.shape[2:] == (1, 1) and bias.shape[0] == 1:
        own = replace(bias, shape=bias.shape[1:2], row_bytes=bias.nbytes)
        made.tensors[TOWER + STEM_BIAS.removeprefix("v.")] = own
    return made
