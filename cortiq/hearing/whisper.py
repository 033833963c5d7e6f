"""Whisper's encoder: two convolutions over a spectrogram, then rows that see one another."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cortiq.errors import FormatError
from cortiq.hearing.config import SoundConfig
from cortiq.ir import Builder, Op, Program, Value
from cortiq.ir.encoders import ENCODER, LAST, Encoder
from cortiq.ir.layers import MLP, Attention, Embedding, LayerNorm, Linear, Residual
from cortiq.ir.ops import Activation
from cortiq.models.names import Names
from cortiq.models.parts import activation, named
from cortiq.models.whisper import EPS, FEED_FORWARD, TENSORS, Config

FRAME, FRAMES = "frame", "frames"
"""Input of both entries: neighbouring rows side by side; and the entry of the first convolution."""
CONVOLVED = "convolved"
"""Output of that entry."""
HIDDEN = "hidden"
"""Output of the encoder."""
PLACED = "placed.row"
"""Input: the row that is added for a position."""
KERNEL, STRIDE = 3, 2
"""Frames that a convolution reads, and how far apart the second one does."""
PREFIXES: Mapping[str, str] = {"model.encoder.": "encoder."}
NAMES = Names(unread=r"encoder\.embed_positions\.bias")


def build(config: Config) -> Program:
    """Build the encoder, and the entry of its first convolution."""
    b, x = encoder(config, "whisper")
    written(b, LayerNorm(config.hidden_size, EPS), x, HIDDEN, "encoder.layer_norm")
    finish(b, config)
    return b.program()


def encoder(
    config: Config | SoundConfig,
    family: str,
    out: str = "",
    supplied: bool = False,
    first: Callable[[Builder], Value] | None = None,
    key_biased: bool = False,
) -> tuple[Builder, Value]:
    """Write the encoder up to its last layer, and return what that gives.

    Parameters
    ----------
    out : name of it, where it is not the layer's own.
    supplied : rows of positions are given as the input `placed.row`; by default they are learned.
    first : writes what a position is added to; by default the second convolution.
    key_biased : keys have biases, as queries and values do.
    """
    width = config.hidden_size
    if width % config.encoder_attention_heads:
        raise FormatError(f"{config.encoder_attention_heads} heads share {width}", where="config")
    facts = {
        "family": family, "layers": config.encoder_layers, "width": width,
        "heads": config.encoder_attention_heads, "kv_heads": config.encoder_attention_heads,
        ENCODER: Encoder(),
    }  # fmt: skip
    b = Builder(context=config.max_source_positions * STRIDE, facts=facts)
    position, last = b.input("position"), b.input(LAST)
    x = first(b) if first else _convolved(b, "encoder.conv2", width, width)
    table = {"table": "encoder.embed_positions.weight"}
    learned = Embedding(config.max_source_positions, width)
    where = (
        b.input(PLACED, (width,), "f32")
        if supplied
        else b.add(learned, position, name="place", weights=table)
    )
    x = b.add(Residual(), x, where, name="placed")
    for n in range(config.encoder_layers):
        name = out if n == config.encoder_layers - 1 else ""
        x = _layer(b, config, x, n, (position, last), name or f"layers.{n}.out", key_biased)
    return b, x


def finish(b: Builder, config: Config | SoundConfig) -> None:
    """Finish the encoder, and write the entry of its first convolution."""
    b.graph("trunk", (HIDDEN,))
    b.input("position")
    y = _convolved(b, "encoder.conv1", config.num_mel_bins, config.hidden_size)
    b.graph(FRAMES, (y.name,))


def written(b: Builder, op: Op, x: Value, name: str, tensor: str) -> Value:
    """Write an operator whose tensors are `tensor`.ROLE."""
    weights = {role: f"{tensor}.{role}" for role in op.weight_shapes()}
    return b.add(op, x, name=name, weights=weights)


def _convolved(b: Builder, tensor: str, inner: int, width: int) -> Value:
    """Write a convolution over rows that lie side by side, and GELU, whatever layers have."""
    frame = b.input(FRAME, (KERNEL * inner,), "f32")
    y = written(b, Linear(KERNEL * inner, width, biased=True), frame, "convolution", tensor)
    return b.add(Activation("gelu"), y, name=CONVOLVED)


def _layer(
    b: Builder,
    config: Config | SoundConfig,
    x: Value,
    n: int,
    seen: tuple[Value, Value],
    out: str,
    key_biased: bool,
) -> Value:
    width, here, file = config.hidden_size, f"layers.{n}", f"encoder.layers.{n}"
    heads, norm = config.encoder_attention_heads, LayerNorm(width, EPS)
    op = Attention(
        width, heads, heads, width // heads, biased=True if key_biased else ("q", "v"),
        output_biased=True, until=True,
    )  # fmt: skip
    y = written(b, norm, x, f"{here}.attention_norm", f"{file}.self_attn_layer_norm")
    weights, slots = named(op, f"{file}.self_attn", TENSORS), {"kv": f"{here}.kv"}
    y = b.add(op, y, *seen, name=f"{here}.attention", weights=weights, slots=slots)
    x = b.add(Residual(), x, y, name=f"{here}.middle")
    mlp = MLP(width, config.encoder_ffn_dim, activation(config.hidden_act), biased=True)
    y = written(b, norm, x, f"{here}.mlp_norm", f"{file}.final_layer_norm")
    y = b.add(mlp, y, name=f"{here}.mlp", weights=named(mlp, file, FEED_FORWARD))
    return b.add(Residual(), x, y, name=out)
