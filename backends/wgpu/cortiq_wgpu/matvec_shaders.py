"""WGSL of the products of a few rows for GPUs, whose weights stream."""

from __future__ import annotations

from itertools import product

from cortiq_wgpu.packing import CodePacking
from cortiq_wgpu.product_shaders import code_parts, sub_offset, sub_scale, target_text
from cortiq_wgpu.shader_source import ShaderSource, kernel
from cortiq_wgpu.tuning import TUNING, ProductTuning


def _row_names(form: CodePacking) -> tuple[str, ...]:
    """Name the sums of planes' products."""
    return ("hh", "mid", "ll") if form.planes == 2 else ("hh", "ll")


def _added(form: CodePacking, rows: int, tuning: ProductTuning) -> str:
    """Write a turn of the loop: units of each line by units of each row; zeros past the last."""
    turns = range(tuning.turns)
    texts = [f"let u{t} = min(u + {t}u * LANES, units - 1u);" for t in turns]
    texts += [
        f"let {name}{k}_{t} = codes[line{k} + {plane}u * units + u{t}];"
        for plane, name in enumerate("cd"[: form.planes])
        for k in range(tuning.lines)
        for t in turns
    ]
    for r, t in product(range(rows), turns):
        for name, offset in (("high", ""), ("low", " + units")):
            value = f"q[record{r}{offset} + u{t}]"
            there = f"u + {t}u * LANES < units"
            value = f"select(vec4u(0u), {value}, {there})" if t else value
            texts.append(f"let {name}{r}_{t} = {value};")
    for r, k, t in product(range(rows), range(tuning.lines), turns):
        texts.append(f"hh{r}_{k} += dot16(c{k}_{t}, high{r}_{t});")
        last = "d" if form.planes == 2 else "c"
        if form.planes == 2:
            both = f"dot16(d{k}_{t}, high{r}_{t}) + dot16(c{k}_{t}, low{r}_{t})"
            texts.append(f"mid{r}_{k} += {both};")
        texts.append(f"ll{r}_{k} += dot16({last}{k}_{t}, low{r}_{t});")
    return "\n    ".join(texts)


def _streamed_rows(
    form: CodePacking, rows: int, record: str, tuning: ProductTuning
) -> dict[str, str]:
    """Fill in `stream.wgsl`: a lane takes every LANES-th unit of 16 columns."""
    names, lines = _row_names(form), tuning.lines
    loaded = [
        f"let record{r} = ($q + {record.replace('row', f'min(first + {r}u, count - 1u)')}"
        f" * $size) / 4u;"
        for r in range(rows)
    ]
    loaded += [
        f"let line{k} = (clamp(n0 + {k}u + shift, $start, $stop - 1u) - $start)"
        f" * {form.planes}u * units;"
        for k in range(lines)
    ]
    cells = [(r, k) for r in range(rows) for k in range(lines)]
    loaded += [f"var {name}{r}_{k} = 0;" for name in names for r, k in cells]
    put = [
        f"parts[{(number * rows + r) * lines + k}u * STEP + lane] = {name}{r}_{k};"
        for number, name in enumerate(names)
        for r, k in cells
    ]
    totals = ", ".join(f"total_of({number * rows * lines}u + lane)" for number in range(len(names)))
    return {
        "LINES": str(lines),
        "LANES": str(tuning.lanes),
        "TURNS": str(tuning.turns),
        "SUMS_EACH": str(len(names)),
        "LOADED": "\n  ".join(loaded),
        "ADDED": _added(form, rows, tuning),
        "PUT": "\n  ".join(put),
        "ROUNDED": f"round_{'three' if form.planes == 2 else 'two'}_planes({totals})",
    }


def _group_sums(form: CodePacking) -> str:
    """Write a function: the integer sums of a group of 32 columns."""
    low = ""
    if form.minima:
        low = f"""
  let sums = q[record + 2u * units + g / 2u];
  let odd = (g & 1u) != 0u;
  jj = {sub_offset(form, "a")} * bitcast<i32>(select(sums.x, sums.z, odd));
  jj += {sub_offset(form, "b")} * bitcast<i32>(select(sums.y, sums.w, odd));"""
    return f"""
fn group_sums(line: u32, g: u32, record: u32, units: u32) -> vec4i {{
  let c = codes_of(line, g, 0u);
  let sa = {sub_scale(form, "a")};
  let sb = {sub_scale(form, "b")};
  let at = record + 2u * g;
  let hh = sa * dot16(c.a, q[at]) + sb * dot16(c.b, q[at + 1u]);
  let ll = sa * dot16(c.a, q[at + units]) + sb * dot16(c.b, q[at + units + 1u]);
  var jj = 0;{low}
  return vec4i(hh, ll, jj, 0);
}}

fn term_of(line: u32, block: u32, sums: vec4i) -> f32 {{
  let at = line * $blocks + block;
  let term = multiply(round_two_planes(sums.x, sums.y), from_bits(s[$scale + at]));
  {"return term;" if not form.minima else _LOW_TERM}
}}
"""


_LOW_TERM = "return add(term, multiply(round_int32(sums.z), from_bits(s[$minimum + at])));"


def _streamed_blocks(form: CodePacking) -> str:
    """Fill in blocks side by side, 64 groups at a time; their terms added up in order."""
    if form.block == 32:
        put = "terms[k * 64u + lane] = select(0.0, term_of(lines[k], g, sums), g < $groups);"
        fold = """var run = 0.0;
        for (var i = 0u; i < 8u; i++) { run = add(run, terms[lane * 8u + i]); }
        runs[lane] = run;"""
        end = "for (var j = 0u; j < 8u; j++) { y[r] = add(y[r], runs[lane * 8u + j]); }"
    else:
        put = "parts[k * 64u + lane] = sums;"
        fold = """var sums = vec4i(0);
        for (var i = 0u; i < 8u; i++) { sums += parts[lane * 8u + i]; }
        let block = g0 / 8u + lane % 8u;
        runs[lane] = select(0.0, term_of(lines[lane / 8u], min(block, $blocks - 1u), sums),
          block < $blocks);"""
        end = """var run = 0.0;
        for (var j = 0u; j < 8u; j++) { run = add(run, runs[lane * 8u + j]); }
        y[r] = add(y[r], run);"""
    return f"""for (var g0 = 0u; g0 < $groups; g0 += LANES) {{
    let g = g0 + lane;
    for (var r = 0u; r < ROWS; r++) {{
      for (var k = 0u; k < 4u; k++) {{
        var sums = vec4i(0);
        if (g < $groups) {{ sums = group_sums(lines[k], g, records[r], units); }}
        {put}
      }}
      workgroupBarrier();
      if (lane < 32u) {{
        {fold}
      }}
      workgroupBarrier();
      if (lane < 4u) {{
        {end}
      }}
    }}
  }}"""


PLACES = {
    "one": "let n0 = max($start, $base) - $base + group.x * OUTPUTSu; let shift = $base;",
    "heads": "let n0 = group.x * OUTPUTSu; let shift = slot * $n;",
    "experts": "let n0 = group.x * OUTPUTSu; let shift = x[$index + first * $slots + slot] * $n;",
}
"""Which line of a matrix, or of a stack of them, gives an output."""


def fast_kernel(
    form: CodePacking,
    dot: str,
    rows: int,
    targets: int = 1,
    choice: str = "one",
    own_rows: bool = False,
    tuning: ProductTuning = TUNING,
) -> ShaderSource:
    """Make the kernel of a few rows by a matrix, whose words are read side by side.

    Parameters
    ----------
    choice, own_rows : as for `product_kernel`; with experts, rows is 1.
    """
    record = "(row * $slots + slot)" if own_rows else "row"
    place = PLACES[choice].replace("OUTPUTS", str(outputs_of(form, tuning)))
    parts = {"ROWS": str(rows), "TARGET": target_text(targets), "PLACE": place, "RECORD": record}
    if not form.block:
        return kernel("stream", dot, parts | _streamed_rows(form, rows, record, tuning))
    text = {"SUMS": _streamed_blocks(form), "FUNCTIONS": _group_sums(form), **code_parts(form)}
    return kernel("fast", dot, parts | text, ("codes", "integers"))


def outputs_of(form: CodePacking, tuning: ProductTuning) -> int:
    """Return the outputs of a workgroup of `fast_kernel`."""
    return 4 if form.block else tuning.lines
