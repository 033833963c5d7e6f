"""Gemma 4's hearing: a conformer, whose rows see few before them and how far these are.

A score has a term by the distance of a key, q·R[t − j]. A row sees fewer keys than there are
remainders of positions: keys have a 1 at the place of theirs beside their values, and queries the
terms of all distances, turned so that each stands at the place of its key's remainder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cortiq.errors import FormatError, RequestError
from cortiq.formats.checkpoint import Checkpoint
from cortiq.hearing.config import SOUND, TEXT, SoundConfig
from cortiq.hearing.conformer import GEMMA4, Conformer, distance_inputs, relative_tensors
from cortiq.hearing.gemma_features import GemmaRules
from cortiq.hearing.grid import BANDS, KERNEL, halved, write_entry
from cortiq.hearing.spoken import SoundProcessor, SoundWindow, SpokenSound
from cortiq.hearing.whisper import HIDDEN, written
from cortiq.ir import Builder, Program, Value
from cortiq.ir.encoders import ENCODER, PROJECTOR, ROWS, SQUARE, Encoder
from cortiq.ir.images import ImageRows
from cortiq.ir.layers import LayerNorm, Linear, RMSNorm
from cortiq.ir.ops import Activation
from cortiq.models.clipped import Bounds, bounds_of
from cortiq.models.config import Amount, Keys
from cortiq.models.names import Names
from cortiq.models.sense_values import sense_values, table_token
from cortiq.numerics.contract import Floats

ARCHITECTURES = ("gemma4",)
MAY_BE_DEAF = True
"""Folders of the family may have no encoder of sound."""
KEYS = Keys(
    only={"attention_context_right": 0, "attention_invalid_logits_value": -1e9},
)
PREFIXES: Mapping[str, str] = {
    f"{start}{theirs}": mine
    for start in ("", "model.")
    for theirs, mine in (("audio_tower.", "encoder."), ("embed_audio.", "projector."))
}
NAMES = Names(
    unread=r"encoder\.layers\.\d+\.(.+\.(in|out)put_(min|max)"
    r"|self_attn\.(relative_k_proj\.weight|per_dim_scale))"
)
MATRICES = (
    *(f"self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "post")),
    *(f"feed_forward{n}.ffw_layer_{m}" for n in (1, 2) for m in (1, 2)),
    "lconv1d.linear_start", "lconv1d.linear_end",
)  # fmt: skip
"""Matrices of a layer that may be clipped."""
AUDIO, BEGIN, END = "<|audio|>", "<|audio>", "<audio|>"
CONVOLUTIONS, SECONDS = 2, 30


@dataclass(frozen=True, kw_only=True)
class Config(SoundConfig):
    """Fields of `Gemma4AudioConfig`, and what the text model does with a sound's rows.

    Attributes
    ----------
    token : id of a sound's rows in the table of per-layer inputs; None where there is none.
    bounds : of clipped matrices, from the tensors.
    """

    hidden_size: int = 1024
    intermediate_size: int = 0
    num_hidden_layers: int = 12
    num_attention_heads: int = 8
    hidden_act: str = "silu"
    subsampling_conv_channels: tuple[int, ...] = (128, 32)
    conv_kernel_size: int = 5
    residual_weight: float = 0.5
    attention_chunk_size: int = 12
    attention_context_left: int = 13
    attention_logit_cap: float = 50.0
    use_clipped_linears: bool = True
    rms_norm_eps: float = 1e-6
    gradient_clipping: float = 1e10
    output_proj_dims: int = 1536
    token: Amount | None = None
    bounds: Bounds = field(default_factory=dict)

    @property
    def bands(self) -> int:
        """Bands of a spectrogram: the first matrix has a quarter of the first channels' number."""
        return self.subsampling_conv_channels[0]

    @property
    def window(self) -> int:
        """Keys that a row sees, its own among them."""
        return self.attention_context_left - 1


def values(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration's keys."""
    text = whole.get(TEXT)
    found = {"audio_token": 258881, **sense_values(whole, SOUND, audio_token="audio_token_id")}
    return found | {"token": table_token(text if isinstance(text, Mapping) else {})}


def layer(number: int) -> str:
    """Return the beginning of the tensors' names of a layer."""
    return f"encoder.layers.{number}"


def with_tensors(config: Config, checkpoint: Checkpoint) -> Config:
    """Return the configuration with what the tensors say: the bounds of clipped matrices."""
    if not config.use_clipped_linears:
        return config
    names = [f"{layer(n)}.{name}" for n in range(config.num_hidden_layers) for name in MATRICES]
    return replace(config, bounds=bounds_of(checkpoint, names))


def computed(config: Config, checkpoint: Checkpoint) -> dict[str, Floats]:
    """Return tensors that are computed of the folder's: terms by distance, gains of queries."""
    made: dict[str, Floats] = {}
    sizes = config.num_attention_heads, config.hidden_size, config.window
    for n in range(config.num_hidden_layers):
        made |= relative_tensors(
            checkpoint, f"{layer(n)}.{GEMMA4.attention}", sizes, GEMMA4.distances
        )
    return made


def build(config: Config, most: int) -> Program:
    """Build encoder and projector, for spectrograms of at most so many frames."""
    width, channels = config.hidden_size, config.subsampling_conv_channels
    what = ""
    if len(channels) != CONVOLUTIONS or min(channels) < 4:
        what = f"convolutions of {list(channels)} channels"
    elif width % (2 * config.num_attention_heads) or width < 4:
        what = f"{config.num_attention_heads} heads share {width}"
    elif config.window < 1 or config.attention_chunk_size - config.window not in (0, 1):
        what = f"rows that see {config.window}, in blocks of {config.attention_chunk_size}"
    if what:
        raise FormatError(what, where="config")
    facts = {
        "family": "gemma4", "layers": config.num_hidden_layers, "width": width,
        "heads": config.num_attention_heads, "kv_heads": config.num_attention_heads,
        ENCODER: Encoder(reach={}),
    }  # fmt: skip
    b = Builder(context=halved(most), facts=facts)
    inner = channels[1] * halved(config.bands, CONVOLUTIONS)
    position, frame = b.input("position"), b.input(BANDS, (inner,), "f32")
    first = "encoder.subsample_conv_projection.input_proj_linear"
    x = written(b, Linear(inner, width), frame, "reduced", first)
    conformer = Conformer(b, config, position)
    for n in range(config.num_hidden_layers):
        x = conformer.layer(x, n, layer(n))
    out = Linear(width, config.output_proj_dims, biased=True)
    written(b, out, x, HIDDEN, "encoder.output_proj")
    b.graph("trunk", (HIDDEN,))
    _convolve(b, config)
    b.input("position")
    square = b.input(SQUARE, (config.output_proj_dims,), "f32")
    norm = RMSNorm(config.output_proj_dims, config.rms_norm_eps, weighted=False)
    y = b.add(norm, square, name="normed")
    last = Linear(config.output_proj_dims, config.text_width)
    written(b, last, y, ROWS, "projector.embedding_projection")
    b.graph(PROJECTOR, (ROWS,))
    return b.program()


def _convolve(b: Builder, config: Config) -> None:
    """Write the entries of the convolutions, whose channels are normed."""
    for n, channels in enumerate(config.subsampling_conv_channels):
        tensor = f"encoder.subsample_conv_projection.layer{n}"

        def end(b: Builder, x: Value, name: str, tensor: str = tensor) -> Value:
            norm = LayerNorm(x.type.shape[-1], config.rms_norm_eps, biased=False)
            y = written(b, norm, x, f"{name}.norm", f"{tensor}.norm")
            return b.add(Activation("relu"), y, name=name)

        before = config.subsampling_conv_channels[n - 1] if n else 1
        bands, op = halved(config.bands, n + 1), Linear(KERNEL**2 * before, channels)
        write_entry(b, n, bands, op, f"{tensor}.conv", end)


class Processor(SoundProcessor):
    """One window of the sound's own length, of 30 s at most."""

    marker, asked_for = AUDIO, True
    config: Config

    def __init__(self, config: Config, given: Mapping[str, Any]) -> None:
        self.config, self.token = config, config.audio_token
        self.rules: Any = GemmaRules.of(given)
        self.rows = ImageRows(token=config.token)
        self.most = self.rules.frames_of(SECONDS * self.rules.sampling_rate)
        if self.rules.feature_size != config.bands:
            what = f"{self.rules.feature_size} bands: the model has {config.bands}"
            raise FormatError(what, where="preprocessor_config.json")

    def rows_of(self, count: int) -> int:
        """Return the rows of the window."""
        frames = self.rules.frames_of(min(count, SECONDS * self.rules.sampling_rate))
        return halved(frames, CONVOLUTIONS)

    def prepare(self, samples: Floats) -> SpokenSound:
        """Return the first 30 s; RequestError for a sound of less than a frame."""
        part = samples[: SECONDS * self.rules.sampling_rate]
        frames = self.rules.spectrogram(part)
        if not len(frames):
            what = f"a sound of {len(samples)} samples is too short to be heard"
            raise RequestError(what, where="audio", hint=f"give at least {self.rules.least}")
        count, heads = halved(len(frames), CONVOLUTIONS), self.config.num_attention_heads
        inputs = distance_inputs(count, heads, self.config.window)
        window = SoundWindow(frames[None], count, np.arange(count)[:, None], inputs)
        return SpokenSound((window,), f"{BEGIN}{AUDIO * count}{END}")
