"""Dispatches of products and look-ups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cortiq.backend.admission import BY_ROW
from cortiq.backend.lower import LoweredStep
from cortiq.ir import ops
from cortiq_wgpu.binder import DispatchBinder
from cortiq_wgpu.dispatch import Dispatch, Grid
from cortiq_wgpu.matmul_shaders import tile_kernel
from cortiq_wgpu.matvec_shaders import fast_kernel, outputs_of
from cortiq_wgpu.packing import MatrixSlice, WgpuMatrix
from cortiq_wgpu.product_shaders import embed_kernel, product_kernel
from cortiq_wgpu.tuning import TUNING

LANES = 64
MANY = 8
"""Rows that a lane takes where there are many."""
FEW = 4
"""Rows that a workgroup of `fast_kernel` takes, unless there is one."""
PLACES = ("scale", "minimum", "sub_scale", "offset", "high")


def _words(matrix: WgpuMatrix, part: MatrixSlice) -> dict[str, int]:
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
    works = []
    for part in matrix.parts:
        mine = {**values, **_words(matrix, part), "start": part.start, "stop": part.stop}
        lines = min(part.stop, matrix.base + end) - max(part.start, matrix.base)
        works.append(_best(binder, matrix, part, mine, (lines, len(run)), step.tail))
    return works


def _best(
    binder: DispatchBinder,
    matrix: WgpuMatrix,
    part: MatrixSlice,
    values: dict[str, int],
    size: tuple[int, int],
    tail: bool,
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
    if binder.tuning is None or not form.streams:
        return replace(plain(1), many=plain(MANY))
    many = plain(MANY)
    if form.bits == 8 and form.planes == 1 and not form.block:
        rows, outputs = tuning.tile
        grid = Grid(-(-lines // outputs), rows, inner)
        many = Dispatch(tile_kernel(binder.dot, targets, tuning), (values,), grid, tail, beside)
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
        _stacked(binder, matrix, part, {**values, **_words(matrix, part)}, (choice, own), step.tail)
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
    """Make the look-up of each row's token, or position, in a table."""
    matrix, out = binder.matrix(step, "table"), step.outputs[0]
    text = embed_kernel(matrix.form, binder.dot)
    works = []
    for part in matrix.parts:
        values = {
            **_words(matrix, part),
            "start": part.start,
            "stop": part.stop,
            "n": matrix.width,
            "vocabulary": matrix.height,
            "by": BY_ROW.index(step.inputs[0]),
            "out": binder.at(out),
        }
        lines = matrix.width if matrix.form.bits == 32 else matrix.groups
        grid = Grid(-(-lines // LANES))
        works.append(Dispatch(text, (values,), grid, step.tail, _beside(part)))
    return works
