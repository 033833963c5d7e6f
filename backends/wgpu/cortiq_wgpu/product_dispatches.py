"""Dispatches of products and look-ups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cortiq.backend.admission import BY_ROW
from cortiq.backend.lower import LoweredStep
from cortiq.ir import ops
from cortiq_wgpu.binder import DispatchBinder
from cortiq_wgpu.dispatch import Dispatch, Grid
from cortiq_wgpu.matvec_shaders import fast_kernel, outputs_of
from cortiq_wgpu.product_shaders import embed_kernel, product_kernel
from cortiq_wgpu.product_tile import ProductTile, tile_of
from cortiq_wgpu.tile_shaders import spread_kernel, tile_kernel
from cortiq_wgpu.tuning import TUNING
from cortiq_wgpu.uploads import MatrixSlice, WgpuMatrix

LANES = 64
MANY = 8
"""Rows that a lane takes where there are many."""
FEW = 4
"""Rows that a workgroup of `fast_kernel` takes, unless there is one."""
PLACES = ("scale", "minimum", "sub_scale", "offset", "high")


def words_beside(matrix: WgpuMatrix, part: MatrixSlice) -> dict[str, int]:
    """Return the offsets of the stretches beside a matrix's codes."""
    each = matrix.form.sub and -(-(matrix.width // matrix.form.sub) // 4)
    block = matrix.form.block
    blocks = -(-matrix.width // block) if block else 1
    places = {name: part.places.get(name, 0) for name in PLACES}
    return {**places, "sub_words": each, "blocks": blocks, "groups": matrix.groups}


def _beside(part: MatrixSlice) -> Mapping[str, object]:
    return {"codes": part.codes} if part.side is None else {"codes": part.codes, "s": part.side}


def _source(binder: DispatchBinder, name: str, matrix: WgpuMatrix) -> dict[str, int]:
    """Return the offset and strides of the rows."""
    if matrix.form.bits == 32:
        return {"x": binder.at(name), "k": matrix.width}
    record = binder.record(name)
    return {"q": record["at"], "size": record["size"], "units": record["units"]}


def matrix_products(binder: DispatchBinder, group: tuple[LoweredStep, ...]) -> list[Dispatch]:
    """Make the products of one value with matrices that lie one after the other."""
    pairs = sorted(
        ((binder.matrix(step, "weight"), step) for step in group), key=lambda pair: pair[0].base
    )
    works: list[Dispatch] = []
    run: list[tuple[WgpuMatrix, LoweredStep]] = []
    for matrix, step in pairs:
        if run and run[-1][0].base + run[-1][0].height != matrix.base:
            works += _run_products(binder, run)
            run = []
        run.append((matrix, step))
    return works + _run_products(binder, run)


def _run_products(
    binder: DispatchBinder, run: list[tuple[WgpuMatrix, LoweredStep]]
) -> list[Dispatch]:
    """Make products with neighbouring matrices: output n is of the value whose lines it is in."""
    matrix, step = run[0]
    source = step.inputs[0]
    values = _source(binder, source, matrix)
    values |= {"inner": binder.heads(source)[0], "slots": 1, "index": 0, "base": matrix.base}
    end = 0
    for number, (other, its) in enumerate(run):
        values |= {
            f"first{number}": end,
            f"out{number}": binder.at(its.outputs[0]),
            f"width{number}": other.height,
        }
        end += other.height
    values["n"] = end
    tile = _tile(binder, matrix, values)
    works = [] if tile is None else [_spread(binder, tile, values, step.tail)]
    for part in matrix.parts:
        mine = {**values, **words_beside(matrix, part), "start": part.start, "stop": part.stop}
        lines = min(part.stop, matrix.base + end) - max(part.start, matrix.base)
        works.append(_best(binder, matrix, part, mine, (lines, len(run)), step.tail, tile))
    return works


def _tile(binder: DispatchBinder, matrix: WgpuMatrix, values: dict[str, int]) -> ProductTile | None:
    """Return the tile for many rows by a matrix, and set how far apart values of a row lie.

    None where there are no kernels for GPUs, or the turned rows would not fit in a buffer.
    """
    tile = None if binder.tuning is None else tile_of(matrix.form, binder.tuning)
    if tile is None:
        return None
    each = tile.size[0]
    values["pitch"] = -(-binder.rows * values["inner"] // each) * each
    fits = 4 * turned_words(tile, values["units"], values["pitch"]) <= binder.pools.limit
    return tile if fits else None


def turned_words(tile: ProductTile, units: int, pitch: int) -> int:
    """Count the words of turned rows: their planes, sums of 16 columns, and powers of two."""
    return ((tile.unit * tile.planes + 1) * units + 1) * pitch


def _spread(
    binder: DispatchBinder, tile: ProductTile, values: dict[str, int], tail: bool
) -> Dispatch:
    """Make the turning of many rows, which the products after it read."""
    text = spread_kernel(tile, binder.dot)
    words = turned_words(tile, values["units"], values["pitch"])
    nothing = Dispatch(text, (values,), Grid(0), tail, turned=words)
    grid = Grid(values["units"], LANES, values["inner"])
    return replace(nothing, many=replace(nothing, grid=grid))


def _best(
    binder: DispatchBinder,
    matrix: WgpuMatrix,
    part: MatrixSlice,
    values: dict[str, int],
    size: tuple[int, int],
    tail: bool,
    tile: ProductTile | None,
) -> Dispatch:
    """Choose the kernels of a product with a part of a matrix: for one row, and for more."""
    (lines, targets), form, inner = size, matrix.form, values["inner"]
    beside, tuning = _beside(part), binder.tuning or TUNING

    def plain(rows: int) -> Dispatch:
        text = product_kernel(form, binder.dot, rows, "one", targets=targets)
        lanes = 1 if form.bits == 32 else LANES
        return Dispatch(text, (values,), Grid(-(-lines // lanes), rows, inner), tail, beside)

    def fast(rows: int) -> Dispatch:
        text = fast_kernel(form, binder.dot, rows, targets, tuning=tuning)
        groups = -(-lines // outputs_of(form, tuning))
        return Dispatch(text, (values,), Grid(groups, rows, inner), tail, beside)

    if form.bits == 32:
        return plain(1)
    many = plain(MANY)
    if tile is not None:
        rows, outputs = tile.size
        grid = Grid(-(-lines // outputs), rows, inner)
        text = tile_kernel(tile, binder.dot, targets)
        many = Dispatch(text, (values,), grid, tail, beside)
    if binder.tuning is None or not form.streams:
        return replace(plain(1), many=many)
    return replace(fast(1), some=fast(FEW), many=many)


def stack_products(binder: DispatchBinder, step: LoweredStep) -> list[Dispatch]:
    """Make the products of a row with a matrix a head, or with the matrices of chosen experts."""
    source, out, op = step.inputs[0], step.outputs[0], step.op
    matrix = binder.matrix(step, "weight")
    choice, slots, own, index = "heads", binder.type_of(out).shape[0], True, 0
    if isinstance(op, ops.ExpertMatMul):
        choice, index = "experts", binder.at(step.inputs[1])
        own = len(binder.type_of(source).shape) > 1
    height = binder.heads(out)[1]
    values = _source(binder, source, matrix)
    values |= {"n": height, "inner": 1, "slots": slots, "index": index, "base": 0}
    values |= {"first0": 0, "out0": binder.at(out), "width0": height}
    return [
        _stacked(
            binder, matrix, part, {**values, **words_beside(matrix, part)}, (choice, own), step.tail
        )
        for part in matrix.parts
    ]


def _stacked(
    binder: DispatchBinder,
    matrix: WgpuMatrix,
    part: MatrixSlice,
    values: dict[str, int],
    how: tuple[str, bool],
    tail: bool,
) -> Dispatch:
    """Make the products with a part of a stack."""
    values |= {"start": part.start, "stop": part.stop}
    lanes = 1 if matrix.form.bits == 32 else LANES

    if binder.tuning is not None and matrix.form.streams:
        text = fast_kernel(matrix.form, binder.dot, 1, 1, *how, binder.tuning)
        grid = Grid(-(-values["n"] // outputs_of(matrix.form, binder.tuning)), z=values["slots"])
        return Dispatch(text, (values,), grid, tail, _beside(part))

    def made(rows: int) -> Dispatch:
        text = product_kernel(matrix.form, binder.dot, rows, *how)
        grid = Grid(-(-values["n"] // lanes), rows, 1, values["slots"])
        return Dispatch(text, (values,), grid, tail, _beside(part))

    if matrix.form.bits == 32 or how[0] == "experts":
        return made(1)
    return replace(made(1), many=made(MANY))


def embed_rows(binder: DispatchBinder, step: LoweredStep) -> list[Dispatch]:
    """Make the look-up of each row's token, position or supplied number in a table."""
    given = step.inputs[0] not in BY_ROW
    matrix, out = binder.matrix(step, "table"), step.outputs[0]
    text = embed_kernel(matrix.form, binder.dot)
    inner = binder.size(step.inputs[0]) if given else 1
    works = []
    for part in matrix.parts:
        values = {
            **words_beside(matrix, part),
            "start": part.start,
            "stop": part.stop,
            "n": matrix.width,
            "vocabulary": matrix.height,
            "by": len(BY_ROW) if given else BY_ROW.index(step.inputs[0]),
            "ids": binder.at(step.inputs[0]) if given else 0,
            "out": binder.at(out),
            "inner": inner,
        }
        lines = matrix.width if matrix.form.bits == 32 else matrix.groups
        grid = Grid(-(-lines // LANES), inner=inner)
        works.append(Dispatch(text, (values,), grid, step.tail, _beside(part)))
    return works
