"""WGSL of the product of many rows and a matrix, for GPUs, in tiles."""

from __future__ import annotations

from collections.abc import Iterator

from cortiq_wgpu import tile_loads as loads
from cortiq_wgpu.product_shaders import target_text
from cortiq_wgpu.product_tile import ProductTile
from cortiq_wgpu.shader_source import ShaderSource, kernel

TOGETHER = 4
"""Values of a row that are multiplied without a loop between them: its turns are not free."""


def _of(name: str, index: int) -> str:
    """Name a component of a vector of four neighbours."""
    return f"{name}{index // 4}.{'xyzw'[index % 4]}"


def _accumulators(tile: ProductTile) -> Iterator[str]:
    form = tile.form
    names = {"a": "0", "b": "0"}
    if form.block:
        names["sum"] = "0.0"
    if not tile.kept:
        names["y"] = "0.0"
    if form.scaled:
        names |= {"hh": "0", "ll": "0"}
    if tile.has_wide_minima:
        names["jj"] = "0"
    for name, start in names.items():
        yield " ".join(f"var {name}{i}_{j} = {start};" for i, j in tile.cells)


def _sums(tile: ProductTile, k: str) -> Iterator[str]:
    """Write the products of a value of every row and output of the lane."""
    for i in range(tile.rows // 4):
        at = f"{k} * ROW_FOURS + down + {tile.down * i}u"
        yield f"let p{i} = row_values[{at}];"
        if tile.words:
            yield f"let r{i} = row_values[PLANE + {at}];"
    for j in range(tile.outputs // 4):
        yield f"let c{j} = code_values[{k} * STEP + across + {16 * j}u];"
        if tile.form.wide:  # the upper bits of a code, and the lower ones
            yield f"let u{j} = c{j} >> vec4u(7u); let v{j} = c{j} & vec4i(127);"
    for i, j in tile.cells:
        cell, p, r, c = f"{i}_{j}", _of("p", i), _of("r", i), _of("c", j)
        if tile.form.wide:
            yield f"a{cell} += {_of('u', j)} * {p}; b{cell} += {_of('v', j)} * {p};"
        else:
            yield f"a{cell} += dot4({p}, {c}); b{cell} += dot4({r}, {c});"


def _besides(tile: ProductTile, half: str) -> Iterator[str]:
    """Write the reading of what is beside the lane's outputs, once for all rows."""
    for number, name in enumerate(tile.beside):
        if name[-1] in "01" and name[-1] != half:
            continue
        kind = name.rstrip("01")
        real = kind in ("scale", "minimum")
        for j in range(tile.outputs // 4):
            word = f"beside[{number}u * OUTPUT_FOURS + across + {16 * j}u]"
            yield f"let {kind}{j} = bitcast<vec4<{'f32' if real else 'i32'}>>({word});"


def _row_sums(tile: ProductTile, halves: str) -> Iterator[str]:
    """Write the rows' sums of 16 columns, or of 32."""
    for i in range(tile.rows // 4):
        parts = [
            f"bitcast<vec4i>(turned[sums_at + (2u * now + {half}u) * pitch + {tile.down * i}u])"
            for half in halves
        ]
        yield f"let j{i} = {' + '.join(parts)};"


def _scales(tile: ProductTile, block: str) -> Iterator[str]:
    """Write the reading of a long block's scales, and minima, from where all of them lie."""
    for name in ("scale", "minimum")[: 1 + tile.form.minima]:
        for j in range(0, tile.outputs, 4):
            each = (f"s[${name} + line_of(n + {16 * j + i}u){block}]" for i in range(4))
            yield f"let {name}{j // 4} = bitcast<vec4f>(vec4u({', '.join(each)}));"


def _whole(tile: ProductTile, i: int, j: int) -> str:
    """Write RN of a block's integer sum."""
    cell, form = f"{i}_{j}", tile.form
    if form.wide:
        return f"round_two_planes(a{cell} >> 1u, b{cell} + ((a{cell} & 1) << 7u))"
    if form.scaled:
        return f"round_two_planes(hh{cell}, ll{cell})"
    # Both are below 2^24 in blocks of at most 256, so that the sum rounds once.
    return f"add(256.0 * f32(a{cell}), f32(b{cell}))"


def _term(tile: ProductTile) -> Iterator[str]:
    """Write the end of a block: its term, added to the run's."""
    form = tile.form
    for i, j in tile.cells:
        term = f"multiply({_whole(tile, i, j)}, {_of('scale', j)})"
        if form.minima:
            low = f"round_int32(jj{i}_{j})" if form.block > 32 else f"f32({_of('j', i)})"
            term = f"add({term}, multiply({low}, {_of('minimum', j)}))"
        yield f"sum{i}_{j} = add(sum{i}_{j}, {term});"
    names = ("hh", "ll") if form.scaled else ("a", "b")
    for name in (*names, *(["jj"] if tile.has_wide_minima else [])):
        yield " ".join(f"{name}{i}_{j} = 0;" for i, j in tile.cells)


def _sub_block(tile: ProductTile) -> Iterator[str]:
    """Write the end of a sub-block: its sum times its sub-scale."""
    for i, j in tile.cells:
        cell, sub = f"{i}_{j}", _of("sub", j)
        yield f"hh{cell} += {sub} * a{cell}; ll{cell} += {sub} * b{cell}; a{cell} = 0; b{cell} = 0;"


def _half_end(tile: ProductTile, half: int) -> Iterator[str]:
    """Write what follows 16 columns."""
    form = tile.form
    by_half = 16 in (form.block, form.sub if form.scaled else 0)
    small = tile.has_wide_minima and form.offset and form.sub == 16
    if not form.block or not (half or by_half or small):
        return
    yield "{"
    yield from _besides(tile, str(half))
    if small:
        yield from _row_sums(tile, str(half))
    elif form.minima and half:
        yield from _row_sums(tile, "01")
    if form.scaled and (by_half or half):
        yield from _sub_block(tile)
    if tile.has_wide_minima and (small or half):
        for i, j in tile.cells:
            low = f"{_of('off', j)} * " if form.offset else ""
            yield f"jj{i}_{j} += {low}{_of('j', i)};"
    if form.block == 16 or (form.block == 32 and half):
        yield from _term(tile)
    yield "}"


def _offsets(tile: ProductTile) -> Iterator[tuple[str, str, str]]:
    """Yield (cell, row, output) of the lane."""
    for i, j in tile.cells:
        row = f"row + {i + 4 * (tile.down - 1) * (i // 4)}u"
        yield f"{i}_{j}", row, f"n + {j + 60 * (j // 4)}u"


def _run_end(tile: ProductTile, run: int) -> Iterator[str]:
    for cell, row, output in _offsets(tile):
        if tile.kept:
            yield f"keep_run({row}, {output}, count, sum{cell}, now < {run}u); sum{cell} = 0.0;"
        else:
            yield f"y{cell} = add(y{cell}, sum{cell}); sum{cell} = 0.0;"


def _stage(tile: ProductTile, half: int) -> Iterator[str]:
    """Write what was fetched to workgroup memory, and fetch what is next."""
    yield "workgroupBarrier();"
    yield from loads.put(tile, half)
    yield "workgroupBarrier();"
    yield from loads.fetched_rows(tile, "now + 1u" if tile.words else f"2u * now + {half + 1}u")
    if half or tile.words:
        yield from loads.fetched_codes(tile, "now + 1u")


def _group(tile: ProductTile) -> Iterator[str]:
    """Write the work on a group of 32 columns: two halves, then the ends of blocks and runs."""
    form = tile.form
    for half in (0, 1):
        if half == 0 or not tile.words:
            yield from _stage(tile, half)
        if not tile.words:
            yield f"for (var k = 0u; k < 16u; k += {TOGETHER}u) {{"
        for column in range(TOGETHER):
            yield "{"
            yield from _sums(tile, f"{4 * half + column}u" if tile.words else f"(k + {column}u)")
            yield "}"
        if not tile.words:
            yield "}"
        yield from _half_end(tile, half)
    if form.block > 32:
        each = form.block // 32
        yield f"if (now % {each}u == {each - 1}u || now + 1u == groups) {{"
        yield from _scales(tile, f" * $blocks + now / {each}u")
        yield from _term(tile)
        yield "}"
    if form.block:
        run = 8 * form.block // 32
        yield f"if (now % {run}u == {run - 1}u || now + 1u == groups) {{"
        yield from _run_end(tile, run)
        yield "}"


def _finished(tile: ProductTile) -> Iterator[str]:
    """Write every output."""
    if not tile.form.block:
        yield from _scales(tile, "")
        for i, j in tile.cells:
            whole = f"round_two_planes(a{i}_{j}, b{i}_{j})"
            yield f"y{i}_{j} = multiply({whole}, {_of('scale', j)});"
    for i in range(tile.rows // 4):
        found = f"turned[sums_at + units * pitch + {tile.down * i}u]"
        yield f"let power{i} = bitcast<vec4f>({found});"
    for (i, _), (cell, row, output) in zip(tile.cells, _offsets(tile), strict=True):
        y = "0.0" if tile.kept else f"y{cell}"
        yield f"finish({row}, {output}, count, {y}, {_of('power', i)});"


_KEEP_RUN = """
// A run's sum, added to those before it, which wait where the output will be.
fn keep_run(row: u32, n: u32, count: u32, sum: f32, first: bool) {
  if (!is_there(row, n, count)) { return; }
  let to = target_of(row, 0u, n);
  var before = 0.0;
  if (!first) { before = from_bits(x[to]); }
  x[to] = bitcast<u32>(add(before, sum));
}
"""


def tile_kernel(tile: ProductTile, dot: str, targets: int) -> ShaderSource:
    """Make the kernel of many rows by a matrix."""
    numbers = {
        "LANES": tile.lanes,
        "ROWS": tile.rows,
        "OUTPUTS": tile.outputs,
        "PLANES": tile.planes,
        "UNIT": tile.unit,
        "STAGE": tile.stage,
        "KINDS": len(tile.beside),
    }
    parts = {
        **{name: str(number) for name, number in numbers.items()},
        "TARGET": target_text(targets),
        "VALUE": tile.value,
        "PUT_CODE": loads.PUT_WORD if tile.words else loads.PUT_VALUES,
        "CODE": "u32" if tile.words else f"vec4<{tile.value}>",
        "BESIDE": loads.beside(tile),
        "VALUES": loads.values(tile),
        "KEPT": _KEEP_RUN if tile.kept else "",
        "LAST": "from_bits(x[to])" if tile.kept else "sum",
        "DECLARED": "\n  ".join([*_accumulators(tile), *loads.declared(tile)]),
        "BEGUN": "\n  ".join([*loads.fetched_codes(tile, "0u"), *loads.fetched_rows(tile, "0u")]),
        "GROUP": "\n    ".join(_group(tile)),
        "FINISHED": "\n  ".join(_finished(tile)),
    }
    return kernel("tile", dot, parts, ("integers",))


_SPREAD = {
    True: "turned[at] = high[i]; turned[at + UNIT * units * pitch] = low[i];",
    False: "turned[at] = bitcast<u32>(byte_of(high, i) * 256 + byte_of(low, i));",
}
"""Values of rows turned as words of bytes in two planes, or whole."""


def spread_kernel(tile: ProductTile, dot: str) -> ShaderSource:
    """Make the kernel that turns quantised rows for `tile_kernel`."""
    put, planes = _SPREAD[tile.words], str(tile.planes)
    return kernel("spread_rows", dot, {"PUT": put, "PLANES": planes, "UNIT": str(tile.unit)})
