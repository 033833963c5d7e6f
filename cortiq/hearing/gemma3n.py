"""Gemma 3n's hearing: Gemma 4's conformer behind convolutions that are normed by all rows so far.

A text has as many rows for a sound as one of 30 s has: those behind its end are the row of the last
token of the sounds' own vocabulary. The token that ends a sound is of that vocabulary, too, so that
its row is computed here, and not looked up in the text model's table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cortiq.errors import FormatError, RequestError
from cortiq.formats.checkpoint import Checkpoint
from cortiq.hearing.config import SOUND, TEXT, SoundConfig
from cortiq.hearing.conformer import (
    Conformer,
    LayerFiles,
    distance_inputs,
    doubles_of,
    relative_tensors,
)
from cortiq.hearing.gemma_features import Gemma3nRules
from cortiq.hearing.grid import BANDS, CONVOLUTIONS, KERNEL, Convolutions, halved, write_entry
from cortiq.hearing.spoken import SoundProcessor, SoundWindow, SpokenSound
from cortiq.hearing.whisper import HIDDEN, written
from cortiq.ir import Builder, Program, Value
from cortiq.ir.encoders import ENCODER, PROJECTOR, ROWS, SQUARE, Encoder
from cortiq.ir.images import ImageRows
from cortiq.ir.layers import Embedding, Linear, RMSNorm
from cortiq.ir.ops import Activation, CombineExperts, Concat, Gain, Reshape
from cortiq.models.clipped import Bounds
from cortiq.models.config import Keys
from cortiq.models.names import Names
from cortiq.models.sense_values import sense_values
from cortiq.numerics.contract import Floats

ARCHITECTURES = ("gemma3n",)
MAY_BE_DEAF = True
"""Folders of the text model alone have no encoder."""
KEYS = Keys(
    aliases={
        "conf_attention_chunk_size": "attention_chunk_size",
        "conf_attention_context_left": "attention_context_left",
        "conf_attention_logit_cap": "attention_logit_cap",
        "conf_conv_kernel_size": "conv_kernel_size",
        "conf_num_attention_heads": "num_attention_heads",
        "conf_num_hidden_layers": "num_hidden_layers",
        "conf_reduction_factor": "reduction_factor",
        "conf_residual_weight": "residual_weight",
        "input_feat_size": "bands",
        "sscp_conv_channel_size": "subsampling_conv_channels",
        "sscp_conv_group_norm_eps": "conv_norm_eps",
    },
    harmless=frozenset({"conf_positional_bias_size", "sscp_conv_eps"}),
    only={
        "conf_attention_context_right": 0, "conf_attention_invalid_logits_value": -1e9,
        "sscp_conv_kernel_size": [[KERNEL, KERNEL]] * 2, "sscp_conv_stride_size": [[2, 2]] * 2,
    },
)  # fmt: skip
PREFIXES: Mapping[str, str] = {
    f"{start}{theirs}": mine
    for start in ("", "model.")
    for theirs, mine in (("audio_tower.", "encoder."), ("embed_audio.", "projector."))
}
FILES = LayerFiles(
    "ffw_layer_start", "ffw_layer_end", "attention.pre_attn_norm", "attention.attn",
    "attention.post", "attention.post_norm", "norm", "", "relative_position_embedding.pos_proj",
)  # fmt: skip
SUBSAMPLE = "encoder.subsample_conv_projection"
NAMES = Names(
    unread=r"encoder\.conformer\.\d+\.attention\.attn\."
    r"(relative_position_embedding\.pos_proj\.weight|per_dim_scale)"
    r"|encoder\.subsample_conv_projection\.conv_\d\.norm\.weight"
)
AUDIO, BEGIN, END = "<audio_soft_token>", "<start_of_audio>", "<end_of_audio>"
TIMES, SECONDS = 2, 30
"""Convolutions, and how much of a sound is heard."""
WORD, KINDS = "word", "kinds"
"""Inputs of the projector: a token of the sounds' vocabulary, and 1 and 0 for a row of the encoder,
0 and 1 for that token."""


@dataclass(frozen=True, kw_only=True)
class Config(SoundConfig):
    """Fields of `Gemma3nAudioConfig`, and what the text model does with a sound's rows.

    Attributes
    ----------
    soft_tokens : rows of a sound. end_token : id behind them. text_vocabulary : ids in all.
    bounds : of clipped matrices, of which there are none.
    """

    hidden_size: int = 1536
    intermediate_size: int = 0
    num_hidden_layers: int = 12
    num_attention_heads: int = 8
    hidden_act: str = "silu"
    vocab_size: int = 128
    vocab_offset: int = 262272
    bands: int = 128
    subsampling_conv_channels: tuple[int, ...] = (128, 32)
    conv_norm_eps: float = 1e-3
    conv_kernel_size: int = 5
    residual_weight: float = 0.5
    attention_chunk_size: int = 12
    attention_context_left: int = 13
    attention_logit_cap: float = 50.0
    reduction_factor: int = 4
    rms_norm_eps: float = 1e-6
    gradient_clipping: float = 1e10
    soft_tokens: int = 188
    end_token: int = 262272
    text_vocabulary: int = 262400
    bounds: Bounds = field(default_factory=dict)

    @property
    def window(self) -> int:
        """Keys that a row sees, its own among them."""
        return self.attention_context_left

    @property
    def words(self) -> tuple[int, int]:
        """Tokens of the sounds' vocabulary: of rows behind the sound, and of its end."""
        return self.text_vocabulary - 1 - self.vocab_offset, self.end_token - self.vocab_offset


def values(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration's keys."""
    text = whole.get(TEXT)
    count = text.get("vocab_size", 262400) if isinstance(text, Mapping) else 262400
    found = sense_values(
        whole, SOUND, audio_token="audio_token_id", end_token="eoa_token_id",
        soft_tokens="audio_soft_tokens_per_image",
    )  # fmt: skip
    return {"audio_token": 262273, **found, "text_vocabulary": count}


def layer(number: int) -> str:
    """Return the beginning of the tensors' names of a layer."""
    return f"encoder.conformer.{number}"


def computed(config: Config, checkpoint: Checkpoint) -> dict[str, Floats]:
    """Return tensors that are computed of the folder's: terms by distance, gains of queries, and
    those of what convolutions made, one for each value that reads it.
    """
    made: dict[str, Floats] = {}
    sizes = config.num_attention_heads, config.hidden_size, config.window
    for n in range(config.num_hidden_layers):
        file = f"{layer(n)}.{FILES.attention}"
        made |= relative_tensors(checkpoint, file, sizes, FILES.distances)
    for n, channels in enumerate(config.subsampling_conv_channels):
        gain = doubles_of(checkpoint, f"{SUBSAMPLE}.conv_{n}.norm.weight", (1, channels))[0]
        bands = halved(config.bands, n + 1)
        last = n + 1 == TIMES
        read = np.tile(gain, bands) if last else np.repeat(gain, KERNEL**2)
        made[f"{SUBSAMPLE}.conv_{n}.gain.weight"] = read.astype(np.float32)
    return made


def build(config: Config, most: int) -> Program:
    """Build encoder and projector, for spectrograms of at most so many frames."""
    width, channels = config.hidden_size, config.subsampling_conv_channels
    what = ""
    if len(channels) != TIMES or min(channels) < 4:
        what = f"convolutions of {list(channels)} channels"
    elif width % (2 * config.num_attention_heads) or width < 4:
        what = f"{config.num_attention_heads} heads share {width}"
    elif not all(0 <= word < config.vocab_size for word in config.words):
        what = f"tokens {list(config.words)} of {config.vocab_size} that stand for sounds"
    if what:
        raise FormatError(what, where="config")
    facts = {
        "family": "gemma3n", "layers": config.num_hidden_layers, "width": width,
        "heads": config.num_attention_heads, "kv_heads": config.num_attention_heads,
        ENCODER: Encoder(reach={}), CONVOLUTIONS: Convolutions(True, config.conv_norm_eps),
    }  # fmt: skip
    b = Builder(context=max(halved(most), config.soft_tokens + 1), facts=facts)
    inner = channels[1] * halved(config.bands, TIMES)
    position, frame = b.input("position"), b.input(BANDS, (inner,), "f32")
    x = _normed(b, frame, "frame.first", 1)
    x = written(b, Linear(inner, width), x, "reduced", f"{SUBSAMPLE}.input_proj_linear")
    conformer = Conformer(b, config, position, FILES, key_scale=1.0)
    for n in range(config.num_hidden_layers):
        last = n + 1 == config.num_hidden_layers
        x = conformer.layer(x, n, layer(n), HIDDEN if last else "")
    b.graph("trunk", (HIDDEN,))
    for n, made in enumerate(channels):
        op = Linear(KERNEL**2 * (channels[n - 1] if n else 1), made)
        write_entry(b, n, halved(config.bands, n + 1), op, f"{SUBSAMPLE}.conv_{n}.conv",
                    first=_first if n else None)  # fmt: skip
    _project(b, config)
    return b.program()


def _normed(b: Builder, x: Value, name: str, number: int) -> Value:
    """Write the end of a convolution: the gains of its norm, and what is above 0."""
    gain = {"weight": f"{SUBSAMPLE}.conv_{number}.gain.weight"}
    x = b.add(Gain(x.type.shape[-1]), x, name=f"{name}.gain", weights=gain)
    return b.add(Activation("relu"), x, name=name)


def _first(b: Builder, x: Value, name: str) -> Value:
    return _normed(b, x, name, 0)


def _project(b: Builder, config: Config) -> None:
    """Write the row of a text for a row of the encoder, or for a token of the sounds."""
    b.input("position")
    soft_or_hard(b, config, b.input(SQUARE, (config.hidden_size,), "f32"))
    b.graph(PROJECTOR, (ROWS,))


def soft_or_hard(b: Builder, config: Any, made: Value) -> None:
    """Write the projector's `rows`: of a row that a tower made, or of a token of its vocabulary."""
    width, eps = config.hidden_size, config.rms_norm_eps
    kinds = b.input(KINDS, (2,), "f32")
    table = Embedding(config.vocab_size, width)
    weights = {"table": "projector.embedding.weight"}
    word = b.add(table, b.input(WORD), name="word.row", weights=weights)
    norm = RMSNorm(width, eps)
    soft = written(b, norm, made, "soft", "projector.soft_embedding_norm")
    hard = written(b, norm, word, "hard", "projector.hard_embedding_norm")
    both = b.add(Concat(), soft, hard, name="both")
    both = b.add(Reshape((2, width)), both, name="both.rows")
    x = b.add(CombineExperts(), kinds, both, name="taken")
    op = Linear(width, config.text_width)
    x = written(b, op, x, "projected", "projector.embedding_projection")
    b.add(RMSNorm(config.text_width, eps, weighted=False), x, name=ROWS)


class Processor(SoundProcessor):
    """One window of the sound's own length, of 30 s at most; as many rows for any."""

    marker, asked_for = AUDIO, True
    config: Config

    def __init__(self, config: Config, given: Mapping[str, Any]) -> None:
        self.config, self.token, self.ends = config, config.audio_token, (config.end_token,)
        self.rules: Any = Gemma3nRules.of(given)
        self.rows = ImageRows(
            token=0
        )  # which all ids past the table of per-layer inputs are fed as
        self.samples = SECONDS * self.rules.sampling_rate
        self.most = self.rules.frames_of(self.samples)
        if self.rules.feature_size != config.bands:
            what = f"{self.rules.feature_size} bands: the model has {config.bands}"
            raise FormatError(what, where="preprocessor_config.json")
        if self._heard(halved(self.most, TIMES)) > config.soft_tokens:
            what = f"{SECONDS} s are more than {config.soft_tokens} rows"
            raise FormatError(what, where="config")

    def _heard(self, count: int) -> int:
        """Return the rows that so many of the encoder are reduced to."""
        return -(-count // self.config.reduction_factor)

    def rows_of(self, count: int) -> int:
        """Return the rows of any sound, with that of its end."""
        return self.config.soft_tokens + 1

    def prepare(self, samples: Floats) -> SpokenSound:
        """Return the first 30 s; RequestError for a sound of less than a frame."""
        frames = self.rules.spectrogram(samples[: self.samples])
        if not len(frames):
            what = f"a sound of {len(samples)} samples is too short to be heard"
            raise RequestError(what, where="audio", hint=f"give at least {self.rules.least}")
        count, soft = halved(len(frames), TIMES), self.config.soft_tokens
        squares, heard = np.full((soft + 1, 1), count), self._heard(count)
        squares[:heard, 0] = np.arange(heard) * self.config.reduction_factor
        own = np.arange(soft + 1) < heard
        words = np.full(soft + 1, self.config.words[0], np.int32)
        words[soft] = self.config.words[1]
        kinds = np.stack([own, ~own], axis=1).astype(np.float32)
        inputs = distance_inputs(count, self.config.num_attention_heads, self.config.window)
        window = SoundWindow(frames[None], count, squares, inputs, {WORD: words, KINDS: kinds})
        return SpokenSound((window,), f"\n\n{BEGIN}{AUDIO * soft}{END}\n\n")
