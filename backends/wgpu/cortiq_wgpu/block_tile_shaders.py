"""WGSL of the product of many rows and a matrix in blocks, for GPUs, in tiles."""

from __future__ import annotations

from collections.abc import Iterator

from cortiq_wgpu.block_tile import LIFT, BlockTile
from cortiq_wgpu.product_shaders import target_text
from cortiq_wgpu.shader_source import ShaderSource, kernel

LANES = 256
TOGETHER = 4
"""Values of a row that are multiplied without a loop between them: its turns are not free."""


def _turns(count: int) -> Iterator[tuple[int, int]]:
    """Yield (turn, number left) for items that the lanes share."""
    for turn in range(-(-count // LANES)):
        yield turn, count - turn * LANES


def _guarded(left: int, text: str) -> str:
    return text if left >= LANES else f"if (lane < {left}u) {{ {text} }}"


def _declared(tile: BlockTile) -> Iterator[str]:
    form = tile.form
    names = {"a": "0" if tile.whole else "0.0", "sum": "0.0", "y": "0.0"}
    if tile.planes == 2 or form.e4m3:
        names["b"] = names["a"]
    if form.scaled:
        names |= {"hh": "0", "ll": "0"}
    if form.minima and form.block > 32:
        names["jj"] = "0"
    for name, start in names.items():
        yield " ".join(f"var {name}{i}_{j} = {start};" for i, j in tile.cells)
    for turn, _ in _turns(tile.turns["row"]):
        yield f"var row{turn}: vec4<{tile.value}>;"
    words = ["code", *(["late"] if form.bits == 8 else []), *(["high"] if form.bits < 7 else [])]
    words += ["late_high"] if form.bits == 6 else []
    for turn, _ in _turns(tile.turns["code"]):
        yield " ".join(f"var {name}{turn} = 0u;" for name in words)
    for turn, _ in _turns(tile.turns["side"]):
        yield f"var side{turn} = 0u;"


def _places(tile: BlockTile) -> Iterator[str]:
    """Write where each lane's items begin."""
    for turn, _ in _turns(tile.turns["row"]):
        item = f"(lane + {turn * LANES}u)"
        column = f"{item} / PLANE * UNIT * units + {item} % PLANE / ROW_FOURS"
        yield f"let row{turn}_at = ({column}) * pitch + first_row / 4u + {item} % ROW_FOURS;"
    for turn, _ in _turns(tile.turns["code"]):
        output = f"(lane + {turn * LANES}u) / 4u"
        yield f"let code{turn}_at = line_of(first_n + {output}) * groups;"
    for turn, _ in _turns(tile.turns["side"]):
        output = f"(lane + {turn * LANES}u) % TILE_OUTPUTS"
        yield f"let side{turn}_line = line_of(first_n + {output});"


def _fetch_codes(tile: BlockTile) -> Iterator[str]:
    """Write the reading of group g's codes, and of what is beside them."""
    bits = tile.form.bits
    for turn, left in _turns(tile.turns["code"]):
        at = f"(code{turn}_at + g)"
        if bits == 8:
            text = f"code{turn} = codes[{at} * 8u + lane % 4u];"
            text += f" late{turn} = codes[{at} * 8u + 4u + lane % 4u];"
        else:
            text = f"code{turn} = codes[{at} * 4u + lane % 4u];"
        if bits == 5:
            text += f" high{turn} = s[$high + {at}];"
        if bits == 6:
            text += f" high{turn} = s[$high + 2u * {at}];"
            text += f" late_high{turn} = s[$high + 2u * {at} + 1u];"
        yield _guarded(left, text)
    for turn, left in _turns(tile.turns["side"]):
        kind = f"(lane + {turn * LANES}u) / TILE_OUTPUTS"
        yield _guarded(left, f"side{turn} = beside_of({kind}, side{turn}_line, g);")


def _fetch_rows(tile: BlockTile) -> Iterator[str]:
    for turn, left in _turns(tile.turns["row"]):
        yield _guarded(left, f"row{turn} = turned[row{turn}_at + stage * STAGE * pitch];")


def _word(tile: BlockTile, turn: int, half: int) -> str:
    """Write four codes of a half of a group as bytes."""
    bits = tile.form.bits
    if bits == 8:
        return f"late{turn}" if half else f"code{turn}"
    word = f"(code{turn} >> 4u)" if half else f"code{turn}"
    word = f"({word} & 0x0f0f0f0fu)"
    if bits == 5:
        word += f" | (((high{turn} >> (lane % 4u + {4 * half}u)) & 0x01010101u) << 4u)"
    if bits == 6:
        high = f"late_high{turn}" if half else f"high{turn}"
        word += f" | ((({high} >> (2u * (lane % 4u))) & 0x03030303u) << 4u)"
    return word


def _put(tile: BlockTile, half: int) -> Iterator[str]:
    for turn, left in _turns(tile.turns["row"]):
        yield _guarded(left, f"row_values[lane + {turn * LANES}u] = row{turn};")
    for turn, left in _turns(tile.turns["code"]):
        output = f"(lane + {turn * LANES}u) / 4u"
        for number, word in (
            (h, _word(tile, turn, h)) for h in ((0, 1) if tile.packed else (half,))
        ):
            place = f"lane % 4u + {4 * number}u" if tile.packed else "lane % 4u"
            yield _guarded(left, f"put_code({place}, {output}, {word});")
    if half:
        return
    for turn, left in _turns(tile.turns["side"]):
        item = f"(lane + {turn * LANES}u)"
        yield _guarded(left, f"beside[{item} / 4u][lane % 4u] = side{turn};")


def _sums(tile: BlockTile, k: str) -> Iterator[str]:
    """Write the products of a column of every row and output of the lane."""
    for i in range(tile.rows // 4):
        yield f"let p{i} = row_values[{k} * ROW_FOURS + down + {16 * i}u];"
        if tile.planes == 2:
            yield f"let r{i} = row_values[PLANE + {k} * ROW_FOURS + down + {16 * i}u];"
    for j in range(tile.outputs // 4):
        yield f"let c{j} = code_values[{k} * STEP + across + {16 * j}u];"
        if tile.form.e4m3:
            yield f"let u{j} = c{j} >> vec4u(7u); let v{j} = c{j} & vec4i(127);"  # upper, lower
    for i, j in tile.cells:
        row, code = f"{i // 4}.{'xyzw'[i % 4]}", f"{j // 4}.{'xyzw'[j % 4]}"
        if tile.form.e4m3:
            yield f"a{i}_{j} += u{code} * p{row}; b{i}_{j} += v{code} * p{row};"
            continue
        if tile.packed:
            yield f"a{i}_{j} += dot4(p{row}, c{code}); b{i}_{j} += dot4(r{row}, c{code});"
            continue
        yield f"a{i}_{j} += p{row} * c{code};"
        if tile.planes == 2:
            yield f"b{i}_{j} += r{row} * c{code};"


def _besides(tile: BlockTile, half: str) -> Iterator[str]:
    """Write the reading of what is beside the lane's outputs, once for all rows."""
    for number, name in enumerate(tile.beside):
        if name[-1] in "01" and name[-1] != half:
            continue
        kind = name.rstrip("01")
        if tile.form.block > 32 and kind in ("scale", "minimum"):
            continue
        yield from _beside_words(tile, number, kind)


def _beside_words(tile: BlockTile, number: int, kind: str) -> Iterator[str]:
    real = kind in ("scale", "minimum")
    for j in range(tile.outputs // 4):
        word = f"beside[{number}u * OUTPUT_FOURS + across + {16 * j}u]"
        yield f"let {kind}{j} = bitcast<vec4<{'f32' if real else 'i32'}>>({word});"


def _row_sums(tile: BlockTile, halves: str) -> Iterator[str]:
    """Write the rows' sums of 16 columns, or of 32."""
    for i in range(tile.rows // 4):
        parts = [
            f"bitcast<vec4i>(turned[sums_at + (2u * now + {half}u) * pitch + {16 * i}u])"
            for half in halves
        ]
        yield f"let j{i} = {' + '.join(parts)};"


def _whole(tile: BlockTile, i: int, j: int) -> str:
    """Write RN of a block's integer sum."""
    cell, form = f"{i}_{j}", tile.form
    if form.e4m3:
        return f"round_two_planes(a{cell} >> 1u, b{cell} + ((a{cell} & 1) << 7u))"
    if form.scaled:
        return f"round_two_planes(hh{cell}, ll{cell})"
    if tile.packed:
        return f"round_int32(256 * a{cell} + b{cell})"
    if tile.lifted:
        return f"add(a{cell}, {LIFT}.0 * f32(j{i // 4}.{'xyzw'[i % 4]}))"
    return f"add(256.0 * a{cell}, b{cell})" if tile.planes == 2 else f"a{cell}"


def _term(tile: BlockTile) -> Iterator[str]:
    """Write the end of a block: its term, added to the run's."""
    form = tile.form
    for i, j in tile.cells:
        at = f"{j // 4}.{'xyzw'[j % 4]}"
        term = f"multiply({_whole(tile, i, j)}, scale{at})"
        if form.minima:
            low = f"f32(j{i // 4}.{'xyzw'[i % 4]})"
            low = f"round_int32(jj{i}_{j})" if form.block > 32 else low
            term = f"add({term}, multiply({low}, minimum{at}))"
        yield f"sum{i}_{j} = add(sum{i}_{j}, {term});"
    names = (
        ["hh", "ll"] if form.scaled else ["a", *(["b"] if tile.planes == 2 or form.e4m3 else [])]
    )
    names += ["jj"] if form.minima and form.block > 32 else []
    zero = "0" if tile.whole else "0.0"
    for name in names:
        start = zero if name in "ab" else "0"
        yield " ".join(f"{name}{i}_{j} = {start};" for i, j in tile.cells)


def _sub_block(tile: BlockTile) -> Iterator[str]:
    """Write the end of a sub-block: its sum times its sub-scale."""
    for i, j in tile.cells:
        cell, sub = f"{i}_{j}", f"sub{j // 4}.{'xyzw'[j % 4]}"
        if tile.planes == 2:
            zero = "0" if tile.whole else "0.0"
            yield f"hh{cell} += {sub} * i32(a{cell}); ll{cell} += {sub} * i32(b{cell});"
            yield f"a{cell} = {zero}; b{cell} = {zero};"
            continue
        yield f"{{ let sum = i32(a{cell}); a{cell} = 0.0;"
        yield f"hh{cell} += {sub} * (sum >> 8u); ll{cell} += {sub} * (sum & 255); }}"


def _half_end(tile: BlockTile, half: int) -> Iterator[str]:
    """Write what follows 16 columns."""
    form = tile.form
    if not form.block:
        return
    by_half = tile.in_halves or form.block == 16
    minima = form.minima and form.block > 32
    small = minima and form.offset and form.sub == 16
    ends = half == 1 or by_half or small
    if not ends:
        return
    yield "{"
    yield from _besides(tile, str(half))
    if small:
        yield from _row_sums(tile, str(half))
    elif form.minima and half:
        yield from _row_sums(tile, "01")
    if form.scaled and (by_half or half):
        yield from _sub_block(tile)
    if minima and (small or half):
        for i, j in tile.cells:
            low = f"off{j // 4}.{'xyzw'[j % 4]} * " if form.offset else ""
            yield f"jj{i}_{j} += {low}j{i // 4}.{'xyzw'[i % 4]};"
    if form.block == 16 or (form.block == 32 and half):
        yield from _term(tile)
    yield "}"


def _run_end(tile: BlockTile) -> Iterator[str]:
    for i, j in tile.cells:
        yield f"y{i}_{j} = add(y{i}_{j}, sum{i}_{j}); sum{i}_{j} = 0.0;"


def _stage(tile: BlockTile, half: int) -> Iterator[str]:
    """Write what was fetched to workgroup memory, and fetch what is next."""
    yield "workgroupBarrier();"
    yield from _put(tile, half)
    yield "workgroupBarrier();"
    following = "now + 1u" if tile.packed else f"2u * now + {half + 1}u"
    yield f"stage = min({following}, {'groups' if tile.packed else 'units'} - 1u);"
    yield from _fetch_rows(tile)
    if half or tile.packed:
        yield "g = min(now + 1u, groups - 1u);"
        yield from _fetch_codes(tile)


def _group(tile: BlockTile) -> Iterator[str]:
    """Write the work on a group of 32 columns: two halves, then the ends of blocks and runs."""
    form = tile.form
    for half in (0, 1):
        if half == 0 or not tile.packed:
            yield from _stage(tile, half)
        if not tile.packed:
            yield f"for (var k = 0u; k < 16u; k += {TOGETHER}u) {{"
        for column in range(TOGETHER):
            yield "{"
            yield from _sums(tile, f"{4 * half + column}u" if tile.packed else f"(k + {column}u)")
            yield "}"
        if not tile.packed:
            yield "}"
        yield from _half_end(tile, half)
    if not form.block:
        return
    each = max(1, form.block // 32)
    if form.block > 32:
        yield f"if (now % {each}u == {each - 1}u || now + 1u == groups) {{"
        for number, name in enumerate(tile.beside):
            if name in ("scale", "minimum"):
                yield from _beside_words(tile, number, name)
        yield from _term(tile)
        yield "}"
    run = 8 * form.block // 32
    yield f"if (now % {run}u == {run - 1}u || now + 1u == groups) {{"
    yield from _run_end(tile)
    yield "}"


def _values(tile: BlockTile) -> str:
    """Write four codes of a word as values."""
    if tile.form.e4m3:
        bytes_ = ", ".join(f"e4m3((word >> {8 * i}u) & 255u)" for i in range(4))
        return f"return vec4i({bytes_});"
    if tile.packed:
        top, each = 0x80808080, 0x01010101 * tile.zero
        return f"return ((word | {top:#x}u) - {each:#x}u) ^ {top:#x}u;" if each else "return word;"
    if tile.form.bits == 8:
        shifted = "bitcast<vec4i>(vec4u(word << 24u, word << 16u, word << 8u, word))"
        return f"return vec4f({shifted} >> vec4u(24u));"
    spread = "vec4u(word, word >> 8u, word >> 16u, word >> 24u) & vec4u(255u)"
    return f"return vec4f({spread}) - vec4f({tile.zero}.0);"


def _finished(tile: BlockTile) -> Iterator[str]:
    rows = [f"row + {i + 60 * (i // 4)}u" for i in range(tile.rows)]
    outputs = [f"n + {j + 60 * (j // 4)}u" for j in range(tile.outputs)]
    if not tile.form.block:
        yield from _beside_words(tile, 0, "scale")
        for i, j in tile.cells:
            whole, at = f"round_two_planes(a{i}_{j}, b{i}_{j})", f"{j // 4}.{'xyzw'[j % 4]}"
            yield f"y{i}_{j} = multiply({whole}, scale{at});"
    for i in range(tile.rows // 4):
        found = f"turned[sums_at + units * pitch + {16 * i}u]"
        yield f"let power{i} = bitcast<vec4f>({found});"
    for i, row in enumerate(rows):
        for j, output in enumerate(outputs):
            power = f"power{i // 4}.{'xyzw'[i % 4]}"
            yield f"finish({row}, {output}, count, y{i}_{j}, {power});"


def _beside_text(tile: BlockTile) -> str:
    *others, last = tile.beside.values()
    texts = [f"if (kind == {number}u) {{ return {text}; }}" for number, text in enumerate(others)]
    return "\n  ".join([*texts, f"return {last};"])


_PUT_WORD = "code_values[word * STEP + output / 4u][output % 4u] = values;"
_PUT_VALUES = """let to = word * 4u * STEP + output / 4u;
  for (var i = 0u; i < 4u; i++) { code_values[to + i * STEP][output % 4u] = values[i]; }"""


def block_tile_kernel(tile: BlockTile, dot: str, targets: int) -> ShaderSource:
    """Make the kernel of many rows by a matrix in blocks."""
    parts = {
        "TARGET": target_text(targets),
        "VALUE": tile.value,
        "ROWS": str(tile.rows),
        "OUTPUTS": str(tile.outputs),
        "PLANES": str(tile.planes),
        "UNIT": str(tile.unit),
        "STAGE": str(tile.stage),
        "PUT_CODE": _PUT_WORD if tile.packed else _PUT_VALUES,
        "CODE": "u32" if tile.packed else f"vec4<{tile.value}>",
        "KINDS": str(len(tile.beside)),
        "BESIDE": _beside_text(tile),
        "VALUES": _values(tile),
        "DECLARED": "\n  ".join(_declared(tile)),
        "PLACES": "\n  ".join(_places(tile)),
        "FETCH_CODES": "\n  ".join(_fetch_codes(tile)),
        "FETCH_ROWS": "\n  ".join(_fetch_rows(tile)),
        "GROUP": "\n    ".join(_group(tile)),
        "FINISHED": "\n  ".join(_finished(tile)),
    }
    return kernel("block_tile", dot, parts)


def spread_kernel(tile: BlockTile, dot: str) -> ShaderSource:
    """Make the kernel that turns quantised rows for `block_tile_kernel`."""
    if tile.packed:
        put, text = "", "turned[at] = high[i]; turned[at + UNIT * units * pitch] = low[i];"
    else:
        put, text = "let value = byte_of(high, i) * 256 + byte_of(low, i);", ""
    if tile.form.e4m3:
        text = "turned[at] = bitcast<u32>(value);"
    elif not text and tile.planes == 1:
        text = "turned[at] = bitcast<u32>(f32(value));"
    elif not text:
        put, text = (
            "",
            (
                "turned[at] = bitcast<u32>(f32(byte_of(high, i)));\n    "
                "turned[at + UNIT * units * pitch] = bitcast<u32>(f32(byte_of(low, i)));"
            ),
        )
    parts = {"PUT": put + text, "PLANES": str(tile.planes), "UNIT": str(tile.unit)}
    return kernel("spread_rows", dot, parts)
