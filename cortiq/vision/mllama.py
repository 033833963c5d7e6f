"""Llama 3.2 Vision's tower: up to four tiles of an image that see one another, in two encoders.

Published engines compute every image with all tiles and with rows that make their number a multiple
of eight. Rows of tiles that the image does not have, and those that are filled up, see only the
image's own rows; these see all. Both are computed, and the image's rows alone are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cortiq.errors import FormatError, UnsupportedError
from cortiq.formats.checkpoint import Checkpoint
from cortiq.hearing.conformer import doubles_of
from cortiq.ir import Program, Value
from cortiq.ir.encoders import PLACE, ROWS, square_of
from cortiq.ir.layers import MLP, Attention, Embedding, LayerNorm, ListedBlocks, Residual
from cortiq.ir.ops import Concat, Gain, Permute, Reshape, ScaleRows
from cortiq.models.config import Keys
from cortiq.models.names import Names
from cortiq.models.parts import ATTENTION, activation, named
from cortiq.numerics.column_order import ColumnOrder
from cortiq.numerics.contract import F32, Floats, snap
from cortiq.numerics.scalar import activation as scalar_function
from cortiq.vision.config import VisionConfig, sight_values
from cortiq.vision.mllama_tiles import LATE, LISTED, OWN, TileProcessor
from cortiq.vision.siglip import FEED_FORWARD
from cortiq.vision.tower import HIDDEN, Tower

ARCHITECTURES = ("mllama",)
Processor = TileProcessor
KEYS = Keys()
PREFIXES: Mapping[str, str] = {
    f"{start}{theirs}": mine
    for start in ("", "model.")
    for theirs, mine in (("vision_model.", "vision."), ("multi_modal_projector.", "projector."))
}
PLACES, AFTER, GATED = "vision.places", "vision.places_after", "vision.global_transformer.layers"
NAMES = Names(
    unread=r"vision\.(class_embedding|(gated|pre_tile|post_tile)_positional_embedding\..*)"
    r"|vision\.global_transformer\.layers\.\d+\.gate_(attn|ffn)"
)
"""Tensors that are read into others (`computed`)."""
IN_TEXT = True
"""Whether the text model has tensors that only images need."""
EPS = 1e-5
"""Of the norms before and after the first encoder."""
ROUND = 8
"""Rows of a tile are filled up to a multiple of it."""
MOST_TILES = 16
"""Tiles of an image at most."""


@dataclass(frozen=True, kw_only=True)
class Config(VisionConfig):
    """Fields of `MllamaVisionConfig`.

    Attributes
    ----------
    supported_aspect_ratios : lines and columns of tiles that an image may have, in their order.
    intermediate_layers_indices : layers whose rows are read beside the last ones.
    """

    hidden_size: int = 1280
    intermediate_size: int = 5120
    num_hidden_layers: int = 32
    num_global_layers: int = 8
    num_attention_heads: int = 16
    image_size: int = 448
    patch_size: int = 14
    hidden_act: str = "gelu"
    norm_eps: float = 1e-5
    max_num_tiles: int = 4
    vision_output_dim: int = 7680
    intermediate_layers_indices: tuple[int, ...] = (3, 7, 15, 23, 30)
    supported_aspect_ratios: tuple[tuple[int, ...], ...] | None = None

    @property
    def tile(self) -> int:
        """Rows of a tile: the class row and the patches."""
        return self.side**2 + 1

    @property
    def filled(self) -> int:
        """Rows of a tile with those that fill it up."""
        return -(-self.tile // ROUND) * ROUND

    @property
    def blocks(self) -> ListedBlocks:
        """Blocks of an image's rows that each row lists."""
        return ListedBlocks(self.tile, -(-self.max_num_tiles * self.filled // self.tile))

    @property
    def forms(self) -> list[tuple[int, int]]:
        """Lines and columns of tiles that an image may have."""
        most = range(1, self.max_num_tiles + 1)
        return [(y, x) for y in most for x in most if y * x <= self.max_num_tiles]


def values(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration's keys."""
    found = sight_values(whole, image_token="image_token_index,image_token_id")
    heads = found.pop("attention_heads", None)
    found |= {} if heads is None else {"num_attention_heads": heads}
    return {"image_token": 128256, **found}


def check(config: Config) -> None:
    """Refuse a geometry that the tower does not compute."""
    count, given = config.num_hidden_layers, config.supported_aspect_ratios
    taken = config.intermediate_layers_indices
    if config.max_num_tiles > MOST_TILES:
        what = f"max_num_tiles {config.max_num_tiles}: at most {MOST_TILES}"
        raise UnsupportedError(what, where="config")
    if given is not None and [tuple(form) for form in given] != config.forms:
        what = f"supported_aspect_ratios of other tiles than {config.max_num_tiles} allow"
        raise UnsupportedError(what, where="config")
    if not taken or any(not 0 <= n < count for n in taken):
        what = f"intermediate_layers_indices {list(taken)} of {count} layers"
        raise FormatError(what, where="config")
    width = (1 + len(taken)) * config.hidden_size
    if config.vision_output_dim != width:
        what = f"vision_output_dim {config.vision_output_dim}: the rows have {width} numbers"
        raise FormatError(what, where="config")
    if config.image_size % config.patch_size:
        what = f"images of {config.image_size} pixels in patches of {config.patch_size}"
        raise UnsupportedError(what, where="config")


def computed(config: Config, checkpoint: Checkpoint) -> dict[str, Floats]:
    """Return tables of what is added to a row, by the image's form, tile and patch, and gates."""
    width, tiles, rows = config.hidden_size, config.max_num_tiles, config.tile
    forms = len(config.forms) + 1
    pre, place, post = (
        f"vision.{name}_positional_embedding" for name in ("pre_tile", "gated", "post_tile")
    )

    def gate(name: str) -> Floats:
        return scalar_function(snap(doubles_of(checkpoint, name, (1, 1)).astype(F32)), "tanh")

    def by_tile(name: str) -> npt.NDArray[np.float64]:
        flat = doubles_of(checkpoint, f"{name}.embedding.weight", (forms, tiles * width))
        return flat.reshape(forms, tiles, width)[1:] * float(gate(f"{name}.gate")[0, 0])

    share = float(gate(f"{place}.gate")[0, 0])
    flat = f"{place}.tile_embedding.weight"
    whole = doubles_of(checkpoint, flat, (forms, tiles * rows * width))
    whole = whole.reshape(forms, tiles, rows, width)[1:] * share
    whole += (1 - share) * doubles_of(checkpoint, f"{place}.embedding", (rows, width))
    whole[:, :, 1:] += by_tile(pre)[:, :, None]
    whole[:, :, 0] += doubles_of(checkpoint, "vision.class_embedding", (1, width))[0]
    made = {
        f"{PLACES}.weight": whole.reshape(-1, width),
        f"{AFTER}.weight": by_tile(post).reshape(-1, width),
    }
    for n in range(config.num_global_layers):
        for end in ("attn", "ffn"):
            made[f"{GATED}.{n}.{end}.weight"] = gate(f"{GATED}.{n}.gate_{end}")[0]
    return {name: snap(array.astype(F32)) for name, array in made.items()}


def build(config: Config, most: int) -> Program:
    """Build tower and projector, for images of at most so many rows."""
    check(config)
    tower, width = Tower(config, most, "mllama"), config.hidden_size
    b, blocks, forms = tower.builder, config.blocks, len(config.forms)
    listed = b.input(LISTED, blocks.type.shape)
    x = tower.patches("vision.patch_embedding", biased=False)
    table = Embedding(forms * config.max_num_tiles * config.tile, width)
    where = b.add(table, b.input(PLACE), name="place.row", weights={"table": f"{PLACES}.weight"})
    x = b.add(Residual(), x, where, name="placed")
    x = tower.apply(LayerNorm(width, EPS), x, "before", "vision.layernorm_pre")
    x = b.add(ScaleRows(), x, b.input(OWN, (1,), "f32"), name="own.rows")
    for n in range(config.num_hidden_layers):
        x = _layer(tower, config, x, f"layers.{n}", f"vision.transformer.layers.{n}", listed)
    x = tower.apply(LayerNorm(width, EPS), x, "after", "vision.layernorm_post")
    table = Embedding(forms * config.max_num_tiles, width)
    where = b.add(table, b.input(LATE), name="late.row", weights={"table": f"{AFTER}.weight"})
    x = b.add(Residual(), x, where, name="late")
    for n in range(config.num_global_layers):
        here = f"layers.{config.num_hidden_layers + n}"
        x = _layer(tower, config, x, here, f"{GATED}.{n}", listed, gated=True)
    b.add(Concat(), x, name=HIDDEN)
    taken = config.intermediate_layers_indices
    tower.finish(*(f"layers.{n}.out" for n in dict.fromkeys(taken)))
    _project(tower, config)
    return tower.program()


def _layer(
    tower: Tower, config: Config, x: Value, here: str, file: str, listed: Value, gated: bool = False
) -> Value:
    """Write a layer; the branches of the second encoder have gates."""
    width, norm = config.hidden_size, LayerNorm(config.hidden_size, config.norm_eps)
    op = Attention(
        width, config.num_attention_heads, config.kv_heads, config.head_width, until=True,
        listed=config.blocks,
    )  # fmt: skip
    mlp = MLP(width, config.intermediate_size, activation(config.hidden_act), biased=True)
    branches = (
        (op, "attention", "input_layernorm", named(op, f"{file}.self_attn", ATTENTION), "attn"),
        (mlp, "mlp", "post_attention_layernorm", named(mlp, f"{file}.mlp", FEED_FORWARD), "ffn"),
    )
    for part, name, before, weights, gate in branches:
        y = tower.apply(norm, x, f"{here}.{name}_norm", f"{file}.{before}")
        slots = {role: f"{here}.{name}.{role}" for role in part.slot_kinds()}
        others = (tower.position, tower.last, listed) if slots else ()
        y = tower.builder.add(part, y, *others, name=f"{here}.{name}", weights=weights, slots=slots)
        if gated:
            y = tower.apply(Gain(1, "all"), y, f"{here}.{name}.gated", f"{file}.{gate}")
        out = f"{here}.{'middle' if slots else 'out'}"
        x = tower.builder.add(Residual(), x, y, name=out)
    return x


def _project(tower: Tower, config: Config) -> None:
    """Write the product of a row of the second encoder and, by channel, of layers of the first."""
    b, width, taken = tower.builder, config.hidden_size, config.intermediate_layers_indices
    outputs = [*dict.fromkeys(taken)]
    given = [b.input(square_of(n), (1, width), "f32") for n in range(1 + len(outputs))]
    rows = [b.add(Reshape((width,)), one, name=f"row.{n}") for n, one in enumerate(given)]
    layers = b.add(Concat(), *(rows[1 + outputs.index(n)] for n in taken), name="layers")
    order = np.arange(len(taken) * width).reshape(len(taken), width).T.reshape(-1)
    layers = b.add(Permute(ColumnOrder.of(order)), layers, name="channels")
    joined = b.add(Concat(), rows[0], layers, name="joined")
    sizes = (config.vision_output_dim, config.text_width)
    tower.linear(joined, ROWS, "projector", sizes, biased=True)
