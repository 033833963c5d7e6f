"""Llama 3.2 Vision's tower: up to four tiles of an image that see one another, in two encoders.

Published engines compute every image with all tiles and with rows that make their number a multiple
of eight. Rows of tiles that the image does not have, and those that are filled up, see only the
image's own rows; these see all. Both are computed, and the image's rows alone are kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cortiq.errors import FormatError, RequestError, UnsupportedError
from cortiq.formats.checkpoint import Checkpoint
from cortiq.hearing.conformer import doubles_of
from cortiq.ir import Program, Value
from cortiq.ir.encoders import PLACE, ROWS, square_of
from cortiq.ir.images import ImageRows
from cortiq.ir.layers import MLP, Attention, Embedding, LayerNorm, ListedBlocks, Residual
from cortiq.ir.ops import Concat, Gain, Permute, Reshape, ScaleRows
from cortiq.models.config import Keys
from cortiq.models.names import Names
from cortiq.models.parts import ATTENTION, activation, named
from cortiq.numerics.column_order import ColumnOrder
from cortiq.numerics.contract import F32, Floats, snap
from cortiq.numerics.pixels import Pixels, patches, resize
from cortiq.numerics.scalar import activation as scalar_function
from cortiq.vision.config import VisionConfig, sight_values
from cortiq.vision.fit import tiles_of
from cortiq.vision.image import ImageProcessor, PixelRules, PreparedImage, Tile
from cortiq.vision.siglip import FEED_FORWARD
from cortiq.vision.tower import HIDDEN, PATCH, Tower

ARCHITECTURES = ("mllama",)
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
IMAGE = "<|image|>"
WHERE = "preprocessor_config.json"
EPS = 1e-5
"""Of the norms before and after the first encoder."""
ROUND = 8
"""Rows of a tile are filled up to a multiple of it."""
LISTED, OWN, LATE = "listed", "own", "place.after"
"""Inputs: blocks that a row sees, 0 for a row that is filled up, and its tile's row after the first
encoder."""
MOST_TILES, MOST_LISTED = 16, 64
"""Tiles of an image at most, and those of a prompt's images."""


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
    if any(type(n) is not int or not 0 <= n < count for n in taken):
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
    if taken:
        layers = b.add(Concat(), *(rows[1 + outputs.index(n)] for n in taken), name="layers")
        order = np.arange(len(taken) * width).reshape(len(taken), width).T.reshape(-1)
        layers = b.add(Permute(ColumnOrder.of(order)), layers, name="channels")
        rows[1:] = [layers]
    joined = b.add(Concat(), *rows, name="joined")
    sizes = (config.vision_output_dim, config.text_width)
    tower.linear(joined, ROWS, "projector", sizes, biased=True)


class Processor(ImageProcessor):
    """Tiles of the canvas that an image fits best, at its upper left, on black."""

    marker = IMAGE

    def __init__(self, config: Config, given: Mapping[str, Any]) -> None:
        self.config, self.token = config, config.image_token
        self.most = 2 * config.blocks.count * config.tile  # lists go on after the last block
        self.rows = ImageRows(tile=config.tile, tiles=MOST_LISTED)
        self.rules = PixelRules.of(given, PixelRules("bilinear"))
        edge = config.image_size
        size = {self.rules.size.get(name, edge) for name in ("height", "width")}
        tiles = given.get("max_image_tiles", config.max_num_tiles)
        if size != {edge} or tiles != config.max_num_tiles:
            what = f"{tiles!r} tiles of {sorted(size)} pixels"
            hint = f"the tower takes {config.max_num_tiles} of {edge}"
            raise UnsupportedError(what, where=WHERE, hint=hint)
        if given.get("do_pad", True) is not True:
            raise UnsupportedError(f"do_pad = {given['do_pad']!r}", where=WHERE)

    def prepare(self, pixels: Pixels) -> PreparedImage:
        """Resize to the canvas, cut it into tiles, and put the rows that are not kept last."""
        config, edge = self.config, self.config.image_size
        form = best_form(pixels.shape[0], pixels.shape[1], config.forms, edge)
        height, width = form[0] * edge, form[1] * edge
        size = fitted_size(pixels.shape[0], pixels.shape[1], (height, width), edge)
        canvas = np.zeros((height, width, 3), np.uint8)
        canvas[: size[0], : size[1]] = resize(pixels, *size, self.rules.filter)
        cut = [patches(t, config.patch_size) for t in tiles_of(self.rules.values(canvas), edge)]
        most, rows, count = config.max_num_tiles, config.tile, len(cut)
        given = np.zeros((most, config.filled, config.patch_width), F32)
        given[:count, 1:rows] = np.stack(cut)
        tile, row = np.divmod(np.arange(most * config.filled), config.filled)
        own = (row < rows) & (tile < count)
        order = np.argsort(~own, kind="stable")
        tile, row, own = tile[order], row[order], own[order]
        first = config.forms.index(form) * most + tile
        places = first * rows + np.minimum(row, rows - 1)
        numbers = np.arange(config.blocks.count, dtype=np.int32)
        listed = np.where(own[:, None], numbers, _without(numbers, count))
        inputs = {
            PLACE: places.astype(np.int32), LATE: first.astype(np.int32),
            OWN: (row < rows).astype(F32)[:, None], LISTED: listed[:, None].astype(np.int32),
        }  # fmt: skip
        kept = np.arange(count * rows).reshape(-1, 1)
        made = Tile(given.reshape(-1, config.patch_width)[order], inputs, kept)
        return PreparedImage((made,), IMAGE, form, beside=True)


def _without(numbers: npt.NDArray[np.int32], count: int) -> npt.NDArray[np.int32]:
    """Return the first numbers of blocks, then such as no row is in."""
    return np.where(numbers < count, numbers, numbers + len(numbers))


def best_form(height: int, width: int, forms: list[tuple[int, int]], edge: int) -> tuple[int, int]:
    """Return the tiles of the canvas for an image: down, across.

    The one that enlarges it least, or, where all are smaller, that shrinks it least; of equal ones
    that of the fewest tiles, then the first.
    """
    scales = [min(down * edge / height, across * edge / width) for down, across in forms]
    larger = [scale for scale in scales if scale >= 1]
    best = min(larger) if larger else max(scales)
    return min(
        (form for form, scale in zip(forms, scales, strict=True) if scale == best), key=math.prod
    )


def fitted_size(height: int, width: int, canvas: tuple[int, int], edge: int) -> tuple[int, int]:
    """Return the size of an image on a canvas: its own, at least a tile's and at most the canvas's
    along one edge.
    """
    down, across = (
        min(max(n, edge), most) for n, most in zip((height, width), canvas, strict=True)
    )
    tall, wide = down / height, across / width
    if wide < tall:
        return min(math.floor(height * wide) or 1, down), across
    return down, min(math.floor(width * tall) or 1, across)
