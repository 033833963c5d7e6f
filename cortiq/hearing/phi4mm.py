"""Phi-4 multimodal's hearing: a conformer whose scores have a bias by head and by distance.

Rows see one another in runs of 500, the last of which is filled up with zeros where it is not the
only one. A key has a 1 at the place of its number in the run beside its values, and a query the
biases of all places beside its own: those of a table that is computed of the file's. Convolutions,
which see frames of the run before, come first.

Source: Phi-4-Mini Technical Report (arXiv 2503.01743), and its published code.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cortiq.errors import FormatError, RequestError
from cortiq.formats.checkpoint import Checkpoint
from cortiq.hearing.config import SOUND, SoundConfig
from cortiq.hearing.conformer import doubles_of, places
from cortiq.hearing.grid import CONVOLUTIONS, KERNEL, Convolutions, halved
from cortiq.hearing.phi4mm_features import Phi4Rules
from cortiq.hearing.phi4mm_layers import HELD, PLACES, RUN, TABLE, Phi4Layers, write_convolutions
from cortiq.hearing.spoken import SoundProcessor, SoundWindow, SpokenSound
from cortiq.hearing.whisper import HIDDEN, written
from cortiq.ir import Builder, Program
from cortiq.ir.encoders import ENCODER, PROJECTOR, ROWS, SQUARE, Encoder
from cortiq.ir.images import ImageRows
from cortiq.ir.layers import Linear
from cortiq.ir.ops import Activation, CombineExperts, Concat, Reshape
from cortiq.models.config import Keys
from cortiq.models.names import Names, other_form
from cortiq.models.sense_values import sense_values
from cortiq.numerics.contract import F32, Floats, snap

ARCHITECTURES = ("phi4_multimodal", "phi4mm")
MAY_BE_DEAF = True
"""A folder may have no encoder of sound."""
OWN_ADAPTER = "speech"
"""The adapter of the folder that prompts with sounds, and no images, take."""
KEYS = Keys(
    aliases={
        "activation": "hidden_act", "attention_dim": "hidden_size",
        "attention_heads": "num_attention_heads", "audio_token_id": "audio_token",
        "conv_channels": "nemo_conv_channels", "input_size": "bands",
        "depthwise_seperable_out_channel": "depthwise_separable_out_channel",
        "linear_units": "intermediate_size", "num_blocks": "num_hidden_layers",
        "t5_bias_max_distance": "bias_max_distance", "t5_bias_symmetric": "bias_symmetric",
    },
    same_as={
        "compression_rate": "time_reduction", "ext_pw_out_channel": "hidden_size",
        "depthwise_separable_out_channel": "hidden_size",
    },
    harmless=frozenset({
        "activation_checkpointing", "dropout_rate", "enable_gradient_checkpointing",
        "encoder_embedding_config", "feature_layer", "left_chunk", "nemo_final_size",
    }),
    only={
        "batch_norm": False, "bias_in_glu": True, "bias_symmetric": False, "causal": True,
        "chunk_size": -1, "cnn_layer_norm": True, "depthwise_multiplier": 1, "downsample_rate": 1,
        "embedding_cls": "audio", "ext_pw_kernel_size": 1, "input_layer": "nemo_conv",
        "projection_cls": "mlp", "type": "t5", "use_conv_downsample": False, "use_qformer": False,
    },
)  # fmt: skip
HERE = "model.embed_tokens_extend.audio_embed."
PREFIXES: Mapping[str, str] = {f"{HERE}encoder.": "encoder."} | {
    f"{HERE}{theirs}.": f"projector.{kind}.{mine}."
    for kind, end in (("speech", "speech"), ("vision", "vision_speech"))
    for theirs, mine in (
        (f"up_proj_for_{end}", "up"), (f"down_proj_for_{end}", "down"),
        (f"audio_projection.{kind}.0", "up"), (f"audio_projection.{kind}.2", "down"),
    )
}  # fmt: skip
STATISTICS = ("encoder.encoder_embedding.global_mean", "encoder.encoder_embedding.global_invstd")
DISTANCES = "encoder.relative_attention_bias_layer.bias_values.weight"
NAMES = Names(
    unread=r"encoder\.(encoder_embedding\..*|relative_attention_bias_layer\..*)"
    r"|encoder\.embed\.conv\.\d+\.weight",
    forms=(
        other_form(
            (r"(feed_forward_\w+)\.gate_up_proj", r"\1.net.0.linear"),
            (r"(feed_forward_\w+)\.down_proj", r"\1.net.2"),
            (r"self_attn\.([qkv])_proj", r"self_attn.linear_\1"),
            (r"self_attn\.o_proj", "self_attn.linear_out"),
        ),
    ),
)
AUDIO = "<|endoftext11|>"
KINDS = "kinds"
"""Input: shares of the two projections, of prompts without images and with them."""
SPEECH, VISION = (1.0, 0.0), (0.0, 1.0)
MOST_TIMES, MOST_HEADS, LOUDEST = 6, 128, 2.0**20


@dataclass(frozen=True, kw_only=True)
class Config(SoundConfig):
    """Fields of `Phi4MultimodalAudioConfig`.

    Attributes
    ----------
    time_reduction : frames that a row is made of. mean, scale : of each band, from the tensors.
    """

    hidden_size: int = 1024
    intermediate_size: int = 1536
    num_hidden_layers: int = 24
    num_attention_heads: int = 16
    hidden_act: str = "swish"
    conv_activation: str = "swish"
    conv_glu_type: str = "swish"
    nemo_activation: str = "relu"
    nemo_conv_channels: int = 1024
    kernel_size: int = 3
    bands: int = 80
    time_reduction: int = 8
    bias_max_distance: int = 1000
    mean: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()

    @property
    def times(self) -> int:
        """Convolutions of stride 2."""
        return self.time_reduction.bit_length() - 1


def values(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration's keys; those of the published form stand in several objects."""
    found = {"audio_token_id": 200011, **sense_values(whole, SOUND)}
    layers = whole.get("embd_layer")
    parts = [found.pop("nemo_conv_settings", {}), found.pop("relative_attention_bias_args", {})]
    parts.append(layers.get("audio_embd_layer", {}) if isinstance(layers, Mapping) else {})
    for part in parts:
        if not isinstance(part, Mapping):
            raise FormatError(f"settings of sounds are no object: {part!r}", where="config.json")
        if twice := found.keys() & part.keys():
            raise FormatError(f"{sorted(twice)} stand in two objects", where="config.json")
        found |= part
    return found


def with_tensors(config: Config, checkpoint: Checkpoint) -> Config:
    """Return the configuration with what the tensors say: means and scales of bands."""
    size = (1, config.bands)
    mean, scale = (doubles_of(checkpoint, name, size)[0] for name in STATISTICS)
    if not (np.abs([mean, scale]) < LOUDEST).all():
        raise FormatError("statistics of bands are not finite, or absurd", where=STATISTICS[0])
    return replace(config, mean=tuple(mean.tolist()), scale=tuple(scale.tolist()))


def computed(config: Config, checkpoint: Checkpoint) -> dict[str, Floats]:
    """Return the tables of biases and places, and the gains of convolutions of single channels.

    A head's bias by distance is divided by what its scores are multiplied by.
    """
    heads, most, size = config.num_attention_heads, config.bias_max_distance, places(RUN)
    given = doubles_of(checkpoint, DISTANCES, (2 * most, heads))
    distance = np.arange(RUN) - np.arange(RUN)[:, None]
    rows = given[np.clip(distance, -most, most - 1) + most] * (config.hidden_size / heads) ** 0.5
    table = np.zeros((RUN, heads, size), F32)
    table[..., :RUN] = rows.swapaxes(1, 2)
    made: dict[str, Floats] = {TABLE: table.reshape(RUN, -1), PLACES: np.eye(RUN, size, dtype=F32)}
    for n in range(1, config.times):
        name, channels = f"encoder.embed.conv.{3 * n - 1}", config.nemo_conv_channels
        kernel = doubles_of(checkpoint, f"{name}.weight", (channels, KERNEL**2))
        made[f"{name}.gain.weight"] = kernel.T.reshape(-1).astype(F32)
    return made


def build(config: Config, most: int) -> Program:
    """Build encoder and projector, for spectrograms of at most so many frames."""
    width, heads = config.hidden_size, config.num_attention_heads
    if width % heads or heads > MOST_HEADS or config.kernel_size < 2:
        what = f"{heads} heads share {width}, kernels of {config.kernel_size}"
        raise FormatError(what, where="config")
    facts = {
        "family": "phi4mm", "layers": config.num_hidden_layers, "width": width, "heads": heads,
        "kv_heads": heads, ENCODER: Encoder(),
        CONVOLUTIONS: Convolutions(apart=True, by_channel=True),
    }  # fmt: skip
    b = Builder(context=max(RUN, halved(most)), facts=facts)
    Phi4Layers(b, config).write()
    b.graph("trunk", (HIDDEN,))
    write_convolutions(b, config)
    _project(b, config)
    return b.program()


def _project(b: Builder, config: Config) -> None:
    """Write the row of a text: of one projection of prompts with images, and of one of others."""
    b.input("position")
    square, kinds = b.input(SQUARE, (config.hidden_size,), "f32"), b.input(KINDS, (2,), "f32")
    width, made = config.text_width, []
    for kind in ("speech", "vision"):
        up, down = Linear(config.hidden_size, width, True), Linear(width, width, True)
        y = written(b, up, square, f"{kind}.up", f"projector.{kind}.up")
        y = b.add(Activation("gelu"), y, name=f"{kind}.activation")
        made.append(written(b, down, y, f"{kind}.down", f"projector.{kind}.down"))
    both = b.add(Reshape((2, width)), b.add(Concat(), *made, name="both"), name="both.rows")
    b.add(CombineExperts(), kinds, both, name=ROWS)
    b.graph(PROJECTOR, (ROWS,))


class Processor(SoundProcessor):
    """Runs of rows up to the sound's end."""

    marker, between, asked_for = AUDIO, "", True
    config: Config

    def __init__(self, config: Config, given: Mapping[str, Any]) -> None:
        self.config, self.token, self.rows = config, config.audio_token, ImageRows()
        self.rules: Any = Phi4Rules.of(given)
        made = self.rules.feature_size, self.rules.audio_compression_rate
        if made != (config.bands, config.time_reduction):
            what = f"{made[0]} bands, {made[1]} frames a row: the model has"
            what += f" {config.bands} and {config.time_reduction}"
            raise FormatError(what, where="preprocessor_config.json")
        if not 0 < config.times <= MOST_TIMES or 1 << config.times != config.time_reduction:
            raise FormatError(f"time_reduction is {config.time_reduction}", where="config")
        self.most = (RUN + 1) * config.time_reduction

    def rows_of(self, count: int) -> int:
        """Return the rows of all runs."""
        return halved(self.rules.frames_of(count), self.config.times)

    def prepare(self, samples: Floats) -> SpokenSound:
        """Return runs of rows; RequestError for a sound of less than a frame."""
        frames = self.rules.spectrogram(samples)
        if not len(frames):
            what = f"a sound of {len(samples)} samples is too short to be heard"
            hint = f"give at least {self.rules.win_length}"
            raise RequestError(what, where="audio", hint=hint)
        mean, scale = (np.array(x, F32) for x in (self.config.mean, self.config.scale))
        frames, rows = snap((frames - mean) * scale), halved(len(frames), self.config.times)
        windows = tuple(self._window(frames, start, rows) for start in range(0, rows, RUN))
        return SpokenSound(windows, AUDIO * rows)

    def _window(self, frames: Floats, start: int, rows: int) -> SoundWindow:
        """Return the run that begins at a row; the row before it is convolved with it."""
        size, before, own = self.config.time_reduction, int(start > 0), min(rows - start, RUN)
        part = frames[(start - before) * size : (start + RUN) * size]
        count = RUN if rows > RUN else rows
        held = {HELD: (np.arange(count) < own).astype(F32)[:, None]}
        kinds = {KINDS: np.tile(np.array(SPEECH, F32), (own, 1))}
        return SoundWindow(part[None], count, np.arange(own)[:, None], held, kinds, before)

    def among(self, sound: SpokenSound, media: Collection[str]) -> SpokenSound:
        """Return a sound by the projection that prompts with images have, where there are some."""
        kind = VISION if "image" in media else SPEECH
        windows = tuple(
            replace(one, supplied={KINDS: np.tile(np.array(kind, F32), (len(one.squares), 1))})
            for one in sound.windows
        )
        return replace(sound, windows=windows)
