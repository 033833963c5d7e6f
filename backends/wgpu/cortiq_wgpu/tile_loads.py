"""WGSL that brings rows, codes and what is beside them into workgroup memory, for tiles."""

from __future__ import annotations

from collections.abc import Iterator

from cortiq_wgpu.product_tile import ProductTile


def _turns(tile: ProductTile, kind: str) -> Iterator[tuple[int, str, str]]:
    """Yield (turn, item, guard) for items of a kind that the lanes share."""
    count = tile.turns[kind]
    for turn in range(-(-count // tile.lanes)):
        left = count - turn * tile.lanes
        guard = "" if left >= tile.lanes else f"if (lane < {left}u) "
        yield turn, f"(lane + {turn * tile.lanes}u)", guard


def declared(tile: ProductTile) -> Iterator[str]:
    """Write what a lane holds of the stage that comes, and where its items begin."""
    bits = tile.form.bits
    for turn, item, _ in _turns(tile, "row"):
        column = f"{item} / PLANE * UNIT * units + {item} % PLANE / ROW_FOURS"
        yield f"let row{turn}_at = ({column}) * pitch + first_row / 4u + {item} % ROW_FOURS;"
        yield f"var row{turn}: vec4<{tile.value}>;"
    words = ["code", *(["late"] if bits == 8 else []), *(["high"] if bits in (5, 6) else [])]
    words += ["late_high"] if bits == 6 else []
    for turn, item, _ in _turns(tile, "code"):
        yield f"let code{turn}_at = line_of(first_n + {item} / 4u) * groups;"
        yield " ".join(f"var {name}{turn} = 0u;" for name in words)
    for turn, item, _ in _turns(tile, "side"):
        yield f"let side{turn}_line = line_of(first_n + {item} % TILE_OUTPUTS);"
        yield f"var side{turn} = 0u;"


def fetched_codes(tile: ProductTile, group: str) -> Iterator[str]:
    """Write the reading of a group's codes, and of what is beside them."""
    bits = tile.form.bits
    yield f"g = min({group}, groups - 1u);"
    for turn, _, guard in _turns(tile, "code"):
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
        yield f"{guard}{{ {text} }}"
    for turn, item, guard in _turns(tile, "side"):
        found = f"beside_of({item} / TILE_OUTPUTS, side{turn}_line, g)"
        yield f"{guard}{{ side{turn} = {found}; }}"


def fetched_rows(tile: ProductTile, stage: str) -> Iterator[str]:
    """Write the reading of a stage of the rows."""
    yield f"stage = min({stage}, {'groups' if tile.words else 'units'} - 1u);"
    for turn, _, guard in _turns(tile, "row"):
        yield f"{guard}{{ row{turn} = turned[row{turn}_at + stage * STAGE * pitch]; }}"


def _word(tile: ProductTile, turn: int, half: int) -> str:
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


def put(tile: ProductTile, half: int) -> Iterator[str]:
    """Write what was fetched to workgroup memory."""
    for turn, item, guard in _turns(tile, "row"):
        yield f"{guard}{{ row_values[{item}] = row{turn}; }}"
    for turn, item, guard in _turns(tile, "code"):
        for part in (0, 1) if tile.words else (half,):
            place = f"lane % 4u + {4 * part}u" if tile.words else "lane % 4u"
            yield f"{guard}{{ put_code({place}, {item} / 4u, {_word(tile, turn, part)}); }}"
    if half:
        return
    for turn, item, guard in _turns(tile, "side"):
        yield f"{guard}{{ beside[{item} / 4u][lane % 4u] = side{turn}; }}"


def values(tile: ProductTile) -> str:
    """Write four codes of a word as values."""
    if tile.form.wide:
        bytes_ = ", ".join(
            f"integer_of_{tile.form.wide}((word >> {8 * i}u) & 255u)" for i in range(4)
        )
        return f"return vec4i({bytes_});"
    top, each = 0x80808080, 0x01010101 * tile.form.zero
    return f"return ((word | {top:#x}u) - {each:#x}u) ^ {top:#x}u;" if each else "return word;"


PUT_WORD = "code_values[word * STEP + output / 4u][output % 4u] = values;"
"""Four codes in workgroup memory as a word."""
PUT_VALUES = """let to = word * 4u * STEP + output / 4u;
  for (var i = 0u; i < 4u; i++) { code_values[to + i * STEP][output % 4u] = values[i]; }"""
"""Four codes there as values."""


def beside(tile: ProductTile) -> str:
    """Write the word of each kind that is beside a group's codes."""
    *others, last = tile.beside.values() or ["0u"]
    texts = [f"if (kind == {number}u) {{ return {text}; }}" for number, text in enumerate(others)]
    return "\n  ".join([*texts, f"return {last};"])
