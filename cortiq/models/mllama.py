"""Llama 3.2 Vision: Llama's blocks, and between them layers that attend to tiles of images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from cortiq.errors import FormatError
from cortiq.ir import Op, Program, Value
from cortiq.ir.encoded import ENCODED, LAST_ENCODED, EncodedRows
from cortiq.ir.images import CROSS, SEEN, TEXT_IDS, TEXT_ONLY, TILES, ImageRows
from cortiq.ir.layers import Embedding, GatedMLP, Linear, ListedBlocks, QKNorm, RMSNorm
from cortiq.ir.ops import Gain, Quantise, Reshape, ScaleRows, StoreKV
from cortiq.models.config import BaseConfig, Keys
from cortiq.models.formed_vectors import of_gate
from cortiq.models.names import Names
from cortiq.models.parts import ATTENTION, HEAD, MLP, TABLE, Decoder, attention, gated_mlp, named
from cortiq.models.rope import rope_table

ARCHITECTURES = ("mllama_text_model",)
GGUF: tuple[str, ...] = ()
KEYS = Keys(harmless=frozenset({"dropout"}))
CROSSED = (3, 8, 13, 18, 23, 28, 33, 38)
"""Layers that attend to an image where no list says otherwise."""
OF_IMAGES = 8
"""Rows of the table after those of texts."""
GATES = ("attn", "mlp")
"""Branches of a layer that attends to images, as the tensors of their gates call them."""


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `MllamaTextConfig`.

    Attributes
    ----------
    cross_attention_layers : layers that a text without an image does not pass.
    """

    num_key_value_heads: int | None = 8
    max_position_embeddings: int = 131072
    rms_norm_eps: float = 1e-5
    hidden_act: str = "silu"
    cross_attention_layers: tuple[int, ...] | None = None
    default_theta: ClassVar[float] = 500000.0

    @property
    def crossed(self) -> tuple[int, ...]:
        """Layers that attend to an image."""
        return CROSSED if self.cross_attention_layers is None else self.cross_attention_layers


def NAMES(config: Config) -> Names:
    """Return the names; layers that attend to images are not read for a model that sees none."""
    layers = "|".join(map(str, config.crossed))
    gates = (f"cross_attn_{branch}_gate" for branch in GATES)
    return Names(
        unread=rf"model\.layers\.({layers})\..*" if layers else "",
        formed={f"{gate}.tanh": of_gate(gate) for gate in gates},
    )


def build(config: Config, context: int, images: ImageRows = TEXT_ONLY) -> Program:
    """Build the trunk; where images stand beside the text, with the layers that attend to them."""
    if config.tie_word_embeddings:
        what = f"tie_word_embeddings: {HEAD} has no rows for an image's tokens"
        raise FormatError(what, where="config")
    layers = range(config.num_hidden_layers)
    own = [n for n in layers if n not in config.crossed]
    if not own:
        raise FormatError("cross_attention_layers has every layer", where="config")
    decoder = Decoder(config, context, family="mllama", eps=config.rms_norm_eps, stored=own)
    table = Embedding(config.vocab_size + OF_IMAGES, config.hidden_size)
    decoder.builder.facts |= {TEXT_IDS: config.vocab_size, "vocab_size": table.vocab}
    seen = _Seen(decoder, config, images) if images.tile else None
    mixer = attention(config, rope=rope_table(config, context))
    mlp = gated_mlp(config, config.hidden_act)
    x = decoder.builder.add(table, decoder.token, name="embed", weights={"table": TABLE})
    for n in layers:
        if n in own:
            x = decoder.mixer(x, own.index(n), mixer)
            x = decoder.feed_forward(x, own.index(n), mlp)
        elif seen is not None:
            x = seen.passed(x, n, mlp)
    program = decoder.finish(x)
    if seen is not None:
        seen.stored([n for n in layers if n not in own])
    return program


class _Seen:
    """Writes the layers that attend to images.

    Attributes
    ----------
    op : the attention, to keys of the tiles that a row lists, up to the last one that it names.
    """

    def __init__(self, decoder: Decoder, config: Config, images: ImageRows) -> None:
        self.decoder = decoder
        builder, blocks = decoder.builder, ListedBlocks(images.tile, images.tiles)
        self.norm = RMSNorm(config.head_width, config.rms_norm_eps)
        self.op = attention(
            config, qk_norm=QKNorm(self.norm.eps), shares_kv=True, until=True, listed=blocks
        )
        most = images.tile * images.tiles
        builder.facts[ENCODED] = EncodedRows(most, config.hidden_size)
        self.keys = builder.input(LAST_ENCODED), builder.input(TILES, blocks.type.shape)
        self.any = builder.input(SEEN, (1,), "f32")

    def here(self, n: int) -> str:
        """Return what values of a layer of the file begin with: in the own layer after it."""
        own = self.decoder.stored
        after = sum(one < n for one in own)
        return f"layers.{min(after, len(own) - 1)}.{CROSS}.{n}"

    def passed(self, x: Value, n: int, mlp: GatedMLP) -> Value:
        """Write both branches of a layer; a row that sees no tile adds +0 in each."""
        file, here, position = f"model.layers.{n}", self.here(n), self.decoder.position
        weights, slots = named(self.op, f"{file}.cross_attn", ATTENTION), {"kv": f"{here}.kv"}
        builder = self.decoder.builder
        y = self.decoder.norm(x, f"{here}.attention_norm", f"{file}.input_layernorm")
        y = builder.add(
            self.op, y, position, *self.keys, name=f"{here}.attention", weights=weights,
            slots=slots,
        )  # fmt: skip
        x = self._added(x, y, n, "attn", f"{here}.middle")
        y = self.decoder.norm(x, f"{here}.mlp_norm", f"{file}.post_attention_layernorm")
        y = builder.add(mlp, y, name=f"{here}.mlp", weights=named(mlp, f"{file}.mlp", MLP))
        y = builder.add(ScaleRows(), y, self.any, name=f"{here}.mlp.seen")
        return self._added(x, y, n, "mlp", f"{here}.out")

    def _added(self, x: Value, y: Value, n: int, branch: str, out: str) -> Value:
        """Write x and a branch times its gate."""
        builder, gate = self.decoder.builder, f"model.layers.{n}.cross_attn_{branch}_gate.tanh"
        name = f"{self.here(n)}.{branch}.gated"
        y = builder.add(Gain(1, "all"), y, name=name, weights={"weight": gate})
        return builder.add(self.decoder.residual, x, y, name=out)

    def stored(self, layers: Sequence[int]) -> None:
        """Write the entry of the images' rows, one a position."""
        builder, config, op = self.decoder.builder, self.decoder.config, self.op
        builder.input("position")
        row = builder.input(ENCODED, (config.hidden_size,), "f32")
        product = Linear(config.hidden_size, op.kv_heads * op.head_dim)
        for n in layers:
            here, file, codes = self.here(n), f"model.layers.{n}.cross_attn", []
            for role in "kv":
                name = f"{here}.{role}"
                weights = {"weight": f"{file}.{role}_proj.weight"}
                y = builder.add(product, row, name=name, weights=weights)
                y = builder.add(Reshape((op.kv_heads, op.head_dim)), y, name=f"{name}.heads")
                if role == "k":
                    weights = {"weight": f"{file}.k_norm.weight"}
                    y = builder.add(self.norm, y, name=f"{name}.norm", weights=weights)
                codes.append(builder.add(Quantise(), y, name=f"{name}.codes"))
            store: Op = StoreKV(op.kv_heads, op.head_dim, op.head_dim)
            builder.add_node(store, *codes, name=f"{here}.store", slots={"kv": f"{here}.kv"})
        builder.graph(ENCODED, ())
