"""WGSL of the product of many rows for GPUs, in tiles."""

from __future__ import annotations

from collections.abc import Iterator

from cortiq_wgpu.product_shaders import target_text
from cortiq_wgpu.shader_source import ShaderSource, kernel
from cortiq_wgpu.tuning import TUNING, ProductTuning

LANES = 256


def tile_kernel(dot: str, targets: int, tuning: ProductTuning = TUNING) -> ShaderSource:
    """Make the kernel of many rows by a matrix of bytes with a scale a line."""
    cells = [(i, j) for i in range(tuning.rows) for j in range(tuning.outputs)]
    items = {"row": 2 * tuning.tile[0] * tuning.units, "column": tuning.tile[1] * tuning.units}
    declared = [f"var h{i}_{j} = 0; var l{i}_{j} = 0;" for i, j in cells]
    declared += [f"var {kind}{t}: vec4u;" for kind, t, _ in _turns(items)]
    parts = {
        "TARGET": target_text(targets),
        "ROWS": str(tuning.rows),
        "OUTPUTS": str(tuning.outputs),
        "UNITS": str(tuning.units),
        "DECLARED": " ".join(declared),
        "PLACES": "\n  ".join(_places(items)),
        "FETCHED": "\n    ".join(_fetched(items)),
        "PUT": "\n    ".join(_put(items)),
        "SUMS": "\n      ".join(_sums(tuning)),
        "FINISHED": "\n  ".join(_finished(tuning)),
    }
    return kernel("tile", dot, parts)


def _turns(items: dict[str, int]) -> Iterator[tuple[str, int, int]]:
    """Yield (kind, turn, number left) for all that a lane fetches of a stretch."""
    for kind, count in items.items():
        for turn in range(-(-count // LANES)):
            yield kind, turn, count - turn * LANES


def _places(items: dict[str, int]) -> Iterator[str]:
    """Write the offset of the first unit of each row and line."""
    for kind, turn, _ in _turns(items):
        item = f"(lane + {turn * LANES}u)"
        if kind == "row":
            row = f"first_row + {item} / UNITS % TILE_ROWS"
            place = f"record_of({row}, count) + {item} / (UNITS * TILE_ROWS) * units"
        else:
            place = f"line_of(first_n + {item} / UNITS) * units"
        yield f"let {kind}{turn}_at = {place};"


def _fetched(items: dict[str, int]) -> Iterator[str]:
    for kind, turn, left in _turns(items):
        read = "q_at" if kind == "row" else "codes_at"
        text = f"{kind}{turn} = {read}({kind}{turn}_at, unit, units);"
        yield text if left >= LANES else f"if (lane < {left}u) {{ {text} }}"


def _put(items: dict[str, int]) -> Iterator[str]:
    for kind, turn, left in _turns(items):
        text = f"put_{kind}(lane + {turn * LANES}u, {kind}{turn});"
        yield text if left >= LANES else f"if (lane < {left}u) {{ {text} }}"


def _sums(tuning: ProductTuning) -> Iterator[str]:
    """Write the products of four words of every row and output of the lane."""
    for word in range(4):
        yield "{"
        for g in range(tuning.rows // 4):
            at = f"rows_at + {word}u * (TILE_ROWS / 4u) + {16 * g}u"
            yield f"let high{g} = planes[{at}]; let low{g} = planes[PLANE + {at}];"
        for g in range(tuning.outputs // 4):
            yield f"let code{g} = columns[columns_at + {word}u * (TILE_OUTPUTS / 4u) + {16 * g}u];"
        for i in range(tuning.rows):
            for j in range(tuning.outputs):
                row, code = f"{i // 4}.{'xyzw'[i % 4]}", f"code{j // 4}.{'xyzw'[j % 4]}"
                yield f"h{i}_{j} += dot4(high{row}, {code}); l{i}_{j} += dot4(low{row}, {code});"
        yield "}"


def _finished(tuning: ProductTuning) -> Iterator[str]:
    """Write scales and exponents once, then every output."""
    rows = [f"row + {i + 60 * (i // 4)}u" for i in range(tuning.rows)]
    outputs = [f"n + {j + 60 * (j // 4)}u" for j in range(tuning.outputs)]
    yield from (f"let power{i} = exponent_of({row}, count);" for i, row in enumerate(rows))
    for j, output in enumerate(outputs):
        yield f"let scale{j} = from_bits(s[$scale + line_of({output})]);"
    for i, row in enumerate(rows):
        for j, output in enumerate(outputs):
            rounded = f"round_two_planes(h{i}_{j}, l{i}_{j})"
            yield f"finish({row}, {output}, count, {rounded}, scale{j}, power{i});"
