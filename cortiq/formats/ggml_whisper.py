"""Whisper in whisper.cpp's files, `ggml-*.bin`: mapped, tensors in ggml's codes.

Layout, little-endian, nothing aligned: "lmgg", 11 i32 (`SIZES`), the filters of the spectrogram
(i32 bands, i32 bins, f32), i32 number of words and each with its u32 length; then tensors to the
end: i32 axes, i32 length of the name, i32 type, i32 sizes (innermost first), name, codes. Source:
whisper.cpp's `convert-pt-to-ggml.py` (MIT). Tensors get the names of Hugging Face folders.

Words are the vocabulary's bytes in the order of their ranks; special tokens follow by a rule of
Whisper's: the end, the start, languages, six others, a time for every row of the encoder and one.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NoReturn

from cortiq.errors import FormatError, UnsupportedError
from cortiq.formats.gguf_types import GGML_TYPES
from cortiq.formats.mapped import MappedTensors, TensorInfo, map_file

MAGIC = b"lmgg"
SIZES = (
    "vocab_size", "max_source_positions", "d_model", "encoder_attention_heads", "encoder_layers",
    "max_target_positions", "decoder_width", "decoder_attention_heads", "decoder_layers",
    "num_mel_bins", "file_type",
)  # fmt: skip
MOST_TENSORS, MOST_AXES, LONGEST, MOST_IDS = 1 << 14, 4, 1 << 10, 1 << 20
END = b"<|endoftext|>"
OTHERS = ("translate", "transcribe", "startoflm", "startofprev", "nospeech", "notimestamps")
MULTILINGUAL = 51865
"""Ids from which on a model knows more than English."""
_CODES = """
en zh de es ru ko fr ja pt tr pl ca nl ar sv it id hi fi vi he uk el ms cs ro da hu ta no
th ur hr bg lt la mi ml cy sk te fa lv bn sr az sl kn et mk br eu is hy ne mn bs kk sq sw
gl mr pa si km sn yo so af oc ka be tg sd gu am yi lo uz fo ht ps tk nn mt sa lb my bo tl
mg as tt haw ln ha ba jw su yue
"""
LANGUAGES = tuple(_CODES.split())
"""In the order of their ids."""
BLOCK = re.compile(r"(encoder|decoder)\.blocks\.(\d{1,4})\.(.+)\.(weight|bias)")
PARTS: Mapping[str, str] = {
    **{f"{theirs}.{part}": f"{ours}.{own}"
       for theirs, ours in (("attn", "self_attn"), ("cross_attn", "encoder_attn"))
       for part, own in (("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj"),
                         ("out", "out_proj"))},
    "attn_ln": "self_attn_layer_norm", "cross_attn_ln": "encoder_attn_layer_norm",
    "mlp_ln": "final_layer_norm", "mlp.0": "fc1", "mlp.2": "fc2",
}  # fmt: skip
PLAIN: Mapping[str, str] = {
    "encoder.positional_embedding": "encoder.embed_positions.weight",
    "decoder.positional_embedding": "decoder.embed_positions.weight",
    "decoder.token_embedding.weight": "decoder.embed_tokens.weight",
    **{f"encoder.conv{n}.{role}": f"encoder.conv{n}.{role}"
       for n in (1, 2) for role in ("weight", "bias")},
    **{f"{theirs}.{role}": f"{ours}.layer_norm.{role}"
       for theirs, ours in (("encoder.ln_post", "encoder"), ("decoder.ln", "decoder"))
       for role in ("weight", "bias")},
}  # fmt: skip


@dataclass(frozen=True)
class GGMLWhisper:
    """An open file: its tensors, sizes and vocabulary.

    Attributes
    ----------
    tensors : by the names of Hugging Face folders. sizes : by `SIZES`.
    words : bytes of the tokens, by rank. named : special tokens.
    """

    tensors: MappedTensors
    sizes: Mapping[str, int]
    words: tuple[bytes, ...]
    named: Mapping[int, str]

    def config(self) -> dict[str, Any]:
        """Return what config.json of a Hugging Face folder would say."""
        sizes = {k: v for k, v in self.sizes.items() if k not in ("decoder_width", "file_type")}
        table = self.tensors.tensors.get("model.decoder.embed_positions.weight")
        if table is not None:  # a converter writes another key of its folder as its length
            sizes["max_target_positions"] = table.shape[0]
        inner = dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 4 * sizes["d_model"])
        return {"model_type": "whisper", "is_encoder_decoder": True, **sizes, **inner}

    def settings(self) -> dict[str, Any]:
        """Return what generation_config.json would say: no special token is drawn but times."""
        ids = {text: token for token, text in self.named.items()}
        last, blank = ids["<|notimestamps|>"], [n for n, w in enumerate(self.words) if w == b" "]
        end, several = ids[END.decode()], self.sizes["vocab_size"] >= MULTILINGUAL
        tags = [text for text in ids if text[2:-2] in LANGUAGES]
        return {
            "eos_token_id": end, "suppress_tokens": list(range(end + 1, last)),
            "begin_suppress_tokens": [*blank, end],
            "lang_to_id": {text: ids[text] for text in tags} if several else {},
        }  # fmt: skip

    def rules(self) -> dict[str, Any]:
        """Return what the processor's file would say."""
        return {"chunk_length": self.sizes["max_source_positions"] // 50}


class _GGMLReader:
    """A cursor over the mapped file; every step is bounded by its end."""

    def __init__(self, path: Path) -> None:
        self.path, self.buffer, self.at = path, map_file(path), 0

    def fail(self, what: str) -> NoReturn:
        raise FormatError(f"{what} (at byte {self.at})", where=str(self.path))

    def take(self, count: int) -> int:
        """Skip bytes; return where they start."""
        if not 0 <= count <= len(self.buffer) - self.at:
            self.fail(f"is cut off or corrupt: {count} bytes are asked for")
        start, self.at = self.at, self.at + count
        return start

    def numbers(self, count: int) -> tuple[int, ...]:
        return struct.unpack_from(f"<{count}i", self.buffer, self.take(4 * count))

    def bytes(self, count: int) -> bytes:
        start = self.take(count)
        return self.buffer[start : self.at]

    def tensor(self) -> TensorInfo:
        axes, length, kind = self.numbers(3)
        if not 0 < axes <= MOST_AXES or not 0 < length <= LONGEST:
            self.fail(f"a tensor has {axes} axes and a name of {length} bytes")
        shape = self.numbers(axes)[::-1]
        theirs = self.bytes(length).decode("utf-8", "replace")
        if kind not in GGML_TYPES:
            what = f"tensor {theirs!r} has ggml's type {kind}"
            raise UnsupportedError(what, where=str(self.path))
        type_, block, size = GGML_TYPES[kind]
        if min(shape) < 1 or shape[-1] % block:
            self.fail(f"tensor {theirs!r} of {list(shape)} has no whole blocks of {type_}")
        if theirs.endswith("bias"):
            shape = (prod(shape),)  # a convolution's has a second axis
        row = shape[-1] // block * size
        nbytes = row * prod(shape[:-1])
        return TensorInfo(self._name(theirs), shape, type_, 0, self.take(nbytes), nbytes, row)

    def _name(self, theirs: str) -> str:
        found = BLOCK.fullmatch(theirs)
        if found and found[3] in PARTS:
            return f"model.{found[1]}.layers.{found[2]}.{PARTS[found[3]]}.{found[4]}"
        if theirs not in PLAIN:
            self.fail(f"has a tensor {theirs!r}, which Whisper has not")
        return f"model.{PLAIN[theirs]}"


def is_ggml_whisper(path: Path) -> bool:
    """Return whether a file begins as whisper.cpp's do."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def open_ggml_whisper(path: Path) -> GGMLWhisper:
    """Open a file of whisper.cpp.

    Raises
    ------
    FormatError : it is damaged, or no Whisper model. UnsupportedError : a type without layout.
    """
    reader = _GGMLReader(path)
    reader.take(len(MAGIC))
    sizes = dict(zip(SIZES, reader.numbers(len(SIZES)), strict=True))
    if min(v for k, v in sizes.items() if k != "file_type") < 1:
        reader.fail(f"has sizes that are none: {sizes}")
    if sizes["decoder_width"] != sizes["d_model"] or sizes["max_source_positions"] % 50:
        reader.fail(f"has sizes that Whisper has not: {sizes}")
    bands, bins = reader.numbers(2)
    if bands != sizes["num_mel_bins"] or not 0 < bins <= 1 << 12:
        reader.fail(f"has filters of {bands} bands and {bins} bins")
    reader.take(4 * bands * bins)  # those that the contract computes
    words, named = _vocabulary(reader, sizes)
    tensors: dict[str, TensorInfo] = {}
    while reader.at < len(reader.buffer):
        info = reader.tensor()
        if info.name in tensors or len(tensors) == MOST_TENSORS:
            reader.fail(f"has {info.name} twice, or more than {MOST_TENSORS} tensors")
        tensors[info.name] = info
    mapped: list[mmap.mmap] = [reader.buffer]
    return GGMLWhisper(MappedTensors(path, [path], tensors, mapped), sizes, words, named)


def _vocabulary(
    reader: _GGMLReader, sizes: Mapping[str, int]
) -> tuple[tuple[bytes, ...], dict[int, str]]:
    """Return words, and special tokens by id."""
    (count,) = reader.numbers(1)
    if not 0 < count <= sizes["vocab_size"] <= MOST_IDS:
        reader.fail(f"has {count} words for {sizes['vocab_size']} ids")
    words = [reader.bytes(reader.numbers(1)[0]) for _ in range(count)]
    if max(map(len, words)) > LONGEST:
        reader.fail(f"has a word of more than {LONGEST} bytes")
    end = words.index(END) if END in words else count
    times = sizes["max_source_positions"] + 1
    languages = sizes["vocab_size"] - end - 2 - len(OTHERS) - times
    if not 0 <= languages <= len(LANGUAGES):
        reader.fail(f"{sizes['vocab_size']} ids leave {languages} for languages")
    tags = [END.decode()[2:-2], "startoftranscript", *LANGUAGES[:languages], *OTHERS]
    tags += [f"{n * 0.02:.2f}" for n in range(times)]
    return tuple(words[:end]), {end + n: f"<|{tag}|>" for n, tag in enumerate(tags)}
