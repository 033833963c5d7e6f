"""Encoders of sound in llama.cpp's form: a file `mmproj*.gguf` with tensors `a.*` and `mm.a.*`.

Its metadata become the keys that config.json and preprocessor_config.json have, its tensors get the
names that folders have. Samples are prepared as Whisper's are, whose numbers no such file says.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from cortiq.errors import FormatError, UnsupportedError
from cortiq.formats.gguf import GGUFFile
from cortiq.formats.mapped import MappedTensors
from cortiq.formats.open_model import Checkpoint
from cortiq.formats.text_model import TEXT, RenamedTensors
from cortiq.hearing.config import SOUND
from cortiq.hearing.features import FeatureRules
from cortiq.hearing.whisper import STRIDE
from cortiq.models.opt import EPS
from cortiq.numerics.sinusoids import sinusoids

AUDIO = "clip.audio."
TENSORS = ("a.", "mm.a.")
FIELDS: Mapping[str, str] = {
    "embedding_length": "hidden_size", "feed_forward_length": "intermediate_size",
    "block_count": "num_hidden_layers", "attention.head_count": "num_attention_heads",
    "num_mel_bins": "num_mel_bins",
}  # fmt: skip
OUTSIDE: Mapping[str, str] = {
    "a.conv1d.1": "conv1", "a.conv1d.2": "conv2", "a.position_embd": "embed_positions",
    "a.post_ln": "layer_norm",
}  # fmt: skip
IN_LAYER: Mapping[str, str] = {
    **{f"attn_{role}": f"self_attn.{role}_proj" for role in ("q", "k", "v", "out")},
    "ln1": "self_attn_layer_norm", "ln2": "final_layer_norm", "ffn_up": "fc1", "ffn_down": "fc2",
}  # fmt: skip
PROJECTOR: Mapping[str, str] = {
    "mm.a.mlp.1": "linear_1", "mm.a.mlp.2": "linear_2", "mm.a.fc": "linear",
    "mm.a.norm_pre": "ln_pre", "mm.a.norm_mid": "ln_mid",
}  # fmt: skip
LAYER = re.compile(r"a\.blk\.(\d+)\.(\w+)")
PLACES, WIDENING = "a.position_embd.weight", "mm.a.mlp.1.weight"
FACTOR = f"{AUDIO}projector.stack_factor"


@dataclass(frozen=True)
class SoundForm:
    """A kind of such a file.

    Attributes
    ----------
    family : `model_type` of its folders. token : text of the token whose rows are a sound's, and
        the key for its id; empty where there is none.
    stacked : the rows of the encoder that a row of the text is made of are in the file.
    seconds : of a sound that is heard; None where the file says it, by its positions.
    names : of tensors in its folders, where other kinds have others.
    """

    family: str
    token: Mapping[str, str] = field(default_factory=dict)
    stacked: bool = False
    seconds: int | None = None
    names: Mapping[str, str] = field(default_factory=dict)


FORMS: Mapping[str, SoundForm] = {
    "ultravox": SoundForm("ultravox", stacked=True),
    "qwen2a": SoundForm("qwen2_audio", {"audio_token_index": "<|AUDIO|>"}),
    "voxtral": SoundForm("voxtral", {"audio_token_id": "[AUDIO]"}, stacked=True),
    "qwen2.5o": SoundForm(
        "qwen2_5_omni_thinker", {"audio_token_id": "<|AUDIO|>"}, seconds=300,
        names={
            "a.post_ln": "audio_tower.ln_post", "mm.a.fc": "audio_tower.proj",
            "a.position_embd": "unread.position_embd",
        },
    ),
}  # fmt: skip
"""By `clip.projector_type`. Qwen2.5-Omni's positions begin anew every 2 s, as in its folders:
llama.cpp, whose file has a table of them, hears 30 s at once."""


def described(file: GGUFFile, kind: str, text: Checkpoint) -> tuple[dict[str, Any], dict[str, int]]:
    """Return what config.json and preprocessor_config.json would say.

    Raises
    ------
    KeyError, TypeError : the file lacks something, or has it in another form.
    FormatError : it contradicts itself, or belongs to another text model.
    UnsupportedError : norms add another number than Whisper's do.
    """
    form, metadata, where = FORMS[kind], file.metadata, str(file.path)
    width = text.config[f"{text.architecture}.embedding_length"]
    made = metadata.get(f"{AUDIO}projection_dim", width)
    if made != width:
        what = f"makes rows of {made} values, those of {text.path.name} have {width}"
        raise FormatError(what, where=where, hint="it belongs to another text model")
    if not math.isclose(eps := metadata[f"{AUDIO}attention.layer_norm_epsilon"], EPS, rel_tol=1e-6):
        raise UnsupportedError(f"norms that add {eps}, not {EPS}", where=where)
    sound = {key: metadata[f"{AUDIO}{name}"] for name, key in FIELDS.items()}
    rows = file.tensors[PLACES].shape[0]
    whole: dict[str, Any] = {
        "model_type": form.family,
        SOUND: sound | {"max_source_positions": rows},
    }
    if form.seconds is not None:
        _check_sines(file, sound["hidden_size"])
        whole[SOUND]["output_dim"] = width
    tokens: Sequence[str] = text.config["tokenizer.ggml.tokens"]
    for key, token in form.token.items():
        if token not in tokens:
            raise FormatError(f"has no token {token!r}", where=str(text.path))
        whole[key] = tokens.index(token)
    if form.stacked:
        whole |= _stacked(file, form, sound)
    seconds = form.seconds or _seconds(rows, where)
    rules = asdict(FeatureRules()) | {
        "feature_size": sound["num_mel_bins"], "chunk_length": seconds,
    }  # fmt: skip
    return {**whole, TEXT: {"hidden_size": width}}, rules


def _stacked(file: GGUFFile, form: SoundForm, sound: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a projector whose rows are several of the encoder's side by side."""
    factor, inner = file.metadata[FACTOR], file.tensors[WIDENING].shape
    if inner[-1] != factor * sound["hidden_size"]:
        what = f"{WIDENING} is {list(inner)}: {FACTOR} is {factor}"
        raise FormatError(what, where=str(file.path))
    if form.family != "ultravox":
        return {"projector_hidden_act": "gelu"}
    middle = "mm.a.norm_mid.weight" in file.tensors
    return {"stack_factor": factor, "hidden_size": inner[0], "projector_ln_mid": middle}


def _check_sines(file: GGUFFile, width: int) -> None:
    """Check that a table of positions, which is not read, is the one that is computed."""
    table, where = file.tensors[PLACES], str(file.path)
    if table.type != "F32" or table.shape[1:] != (width,) or width % 2 or width < 4:
        what = f"{PLACES} is {list(table.shape)} of {table.type}: rows of {width} in F32 are read"
        raise FormatError(what, where=where)
    rows = file.raw(PLACES).view("<f4")
    if not np.allclose(rows, sinusoids(len(rows), width), rtol=0, atol=1e-3):
        raise UnsupportedError(f"{PLACES} has other positions than sines", where=where)


def _seconds(rows: int, where: str) -> int:
    """Return the length of a window that the encoder has so many rows for."""
    rules = FeatureRules()
    seconds, rest = divmod(rows * STRIDE * rules.hop_length, rules.sampling_rate)
    if rest or not seconds:
        raise FormatError(f"{PLACES} has {rows} rows: no whole seconds", where=where)
    return seconds


def tensors_of(file: MappedTensors, kind: str) -> RenamedTensors:
    """Return the tensors under the names that folders have; those of other kinds keep their own."""
    form, names = FORMS[kind], dict[str, str]()
    for name in file.tensors:
        stem, _, end = name.rpartition(".")
        layer = LAYER.fullmatch(stem)
        if layer and layer[2] in IN_LAYER:
            mine = f"audio_tower.layers.{layer[1]}.{IN_LAYER[layer[2]]}.{end}"
        elif stem in form.names:
            mine = f"{form.names[stem]}.{end}"
        elif stem in OUTSIDE:
            mine = f"audio_tower.{OUTSIDE[stem]}.{end}"
        elif stem in PROJECTOR:
            mine = f"multi_modal_projector.{PROJECTOR[stem]}.{end}"
        else:
            mine = f"audio_tower.{name}" if name.startswith("a.") else name
        names[mine] = name
    made = RenamedTensors(file, names)
    for conv in ("conv1", "conv2"):  # whose biases are columns
        bias = f"audio_tower.{conv}.bias"
        info = made.tensors.get(bias)
        if info is not None and info.shape[1:] == (1,):
            made.tensors[bias] = replace(info, shape=info.shape[:1], row_bytes=info.nbytes)
    return made
