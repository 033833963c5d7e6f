"""Texts of the products for GPUs: few rows, whose weights stream, and many, in tiles."""

from __future__ import annotations

from cortiq_wgpu.packing import Form
from cortiq_wgpu.products import code_parts, sub_offset, sub_scale, target_text
from cortiq_wgpu.source import Kernel, kernel


def tile_kernel(dot: str, targets: int) -> Kernel:
    """The product of many rows with a matrix of bytes under a scale a line."""
    cells = [(i, j) for i in range(4) for j in range(8)]
    declared = " ".join(f"var h{i}{j} = 0; var l{i}{j} = 0;" for i, j in cells)
    sums = []
    for step in range(2):
        at = f"(k0 + {step}u)"
        sums.append("{")
        sums.append(f"let h = highs[{at} * 16u + down]; let l = lows[{at} * 16u + down];")
        sums.append(f"let c0 = columns[{at} * 32u + across];")
        sums.append(f"let c1 = columns[{at} * 32u + 16u + across];")
        for i, j in cells:
            code, row = f"c{j // 4}.{'xyzw'[j % 4]}", "xyzw"[i]
            sums.append(f"h{i}{j} += dot4(h.{row}, {code}); l{i}{j} += dot4(l.{row}, {code});")
        sums.append("}")
    finished = [
        f"finish(row + {i}u, n + {j + 60 * (j // 4)}u, h{i}{j}, l{i}{j});" for i, j in cells
    ]
    parts = {
        "TARGET": target_text(targets), "DECLARED": declared, "SUMS": "\n      ".join(sums),
        "FINISHED": "\n  ".join(finished),
    }  # fmt: skip
    return kernel("tile", dot, parts)


def _streamed_rows(form: Form) -> str:
    """Sums over whole lines: a lane takes every 64th stretch of 16 columns."""
    two = form.planes == 2
    names = ("hh", "mid", "ll") if two else ("hh", "ll")
    declared = "\n  ".join(f"var {name}: array<vec4i, ROWS>;" for name in names)
    loads = "\n    ".join(
        f"let {name}{k} = codes[(lines[{k}] * {form.planes}u + {plane}u) * units + u];"
        for plane, name in enumerate("cd"[: form.planes])
        for k in range(4)
    )

    def dots(name: str, row: str) -> str:
        return f"vec4i({', '.join(f'dot16({name}{k}, {row})' for k in range(4))})"

    sums = [f"hh[r] += {dots('c', 'high')};"]
    if two:
        sums.append(f"mid[r] += {dots('d', 'high')} + {dots('c', 'low')};")
    sums.append(f"ll[r] += {dots('d' if two else 'c', 'low')};")
    totals = "\n    ".join(f"let t_{name} = total_of(lane, {name}[r]);" for name in names)
    picked = ", ".join(f"t_{name}[lane % 4u]" for name in names)
    rounded = f"round_{'three' if two else 'two'}_planes({picked})"
    return f"""{declared}
  for (var u = lane; u < units; u += LANES) {{
    {loads}
    for (var r = 0u; r < ROWS; r++) {{
      let high = q[records[r] + u];
      let low = q[records[r] + units + u];
      {" ".join(sums)}
    }}
  }}
  for (var r = 0u; r < ROWS; r++) {{
    {totals}
    y[r] = multiply({rounded}, from_bits(s[$scale + lines[lane % 4u]]));
  }}"""


def _group_sums(form: Form) -> str:
    """A function: the integers of a group of 32 columns."""
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


def _streamed_blocks(form: Form) -> str:
    """Blocks side by side, 64 groups at a time; their terms added up in order."""
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
    "one": "let n0 = max($start, $base) - $base + group.x * 4u; let shift = $base;",
    "heads": "let n0 = group.x * 4u; let shift = slot * $n;",
    "experts": "let n0 = group.x * 4u; let shift = x[$index + first * $slots + slot] * $n;",
}
"""Which line of a matrix, or of a stack of them, gives an output."""


def fast_kernel(
    form: Form, dot: str, rows: int, targets: int = 1, choice: str = "one", own_rows: bool = False
) -> Kernel:
    """The product of a few rows with a matrix, whose words are read side by side.

    Parameters
    ----------
    choice, own_rows : as for `product_kernel`; with experts, rows is 1.
    """
    record = "(row * $slots + slot)" if own_rows else "row"
    parts = {"ROWS": str(rows), "TARGET": target_text(targets), **code_parts(form)}
    parts |= {"PLACE": PLACES[choice], "RECORD": record}
    if not form.block:
        text = {"SUMS": _streamed_rows(form), "FUNCTIONS": ""}
        return kernel("fast", dot, parts | text, ("codes",))
    text = {"SUMS": _streamed_blocks(form), "FUNCTIONS": _group_sums(form)}
    return kernel("fast", dot, parts | text, ("codes",))
