"""WGSL of products and look-ups: codes unpacked, blocks added up."""

from __future__ import annotations

from cortiq_wgpu.packing import CodePacking
from cortiq_wgpu.shader_source import ShaderSource, kernel

WORD = 0x01010101
CHOICES = {
    "one": "n += max($start, $base) - $base; var line = n + $base;",
    "heads": "var line = slot * $n + n;",
    "experts": "var line = x[$index + first * $slots + slot] * $n + n;",
}
"""Which line of a matrix, or of a stack of them, gives output n."""


def _masked(shifted: str, mask: int) -> str:
    return f"({shifted}) & vec4u({mask * WORD:#x}u)"


def _unpack(form: CodePacking) -> str:
    """Write statements that return the codes of a group."""
    if form.bits == 8:
        return (
            f"let place = ((row * {form.planes}u + plane) * $groups + group) * 2u;\n"
            "  return Codes(codes[place], codes[place + 1u]);"
        )
    low, high = _masked("v", 15), _masked("v >> vec4u(4u)", 15)
    lines = [f"let v = codes[at];\n  var a = {low};\n  var b = {high};"]
    if form.bits == 5:
        lines.append("let h = vec4u(s[$high + at]);")
        for half, first in (("a", 0), ("b", 4)):
            shift = ", ".join(f"{first + i}u" for i in range(4))
            part = _masked(f"h >> vec4u({shift})", 1)
            lines.append(f"{half} |= ({part}) << vec4u(4u);")
    if form.bits == 6:
        for half, word in (("a", 0), ("b", 1)):
            part = _masked(f"vec4u(s[$high + 2u * at + {word}u]) >> vec4u(0u, 2u, 4u, 6u)", 3)
            lines.append(f"{half} |= ({part}) << vec4u(4u);")
    lines.append("return Codes(signed_bytes(a), signed_bytes(b));")
    return "\n  ".join(lines)


def _zero_point(form: CodePacking) -> str:
    """Subtract the zero point: no byte borrows from its neighbour while the top bit is set."""
    if not form.zero:
        return "return v;"
    top = f"vec4u({0x80 * WORD:#x}u)"
    return f"return ((v | {top}) - vec4u({form.zero * WORD:#x}u)) ^ {top};"


def code_parts(form: CodePacking) -> dict[str, str]:
    """Return the parts that `codes.wgsl` is filled with."""
    return {"UNPACK": _unpack(form), "ZERO_POINT": _zero_point(form)}


def _row_sums(form: CodePacking) -> str:
    """Write integer sums over the whole row, then one rounding."""
    two = form.planes == 2
    names = ("hh", "mid", "ll") if two else ("hh", "ll")
    declared = "\n  ".join(f"var {name}: array<i32, ROWS>;" for name in names)
    second = "let d = codes_of(line, g, 1u);" if two else ""
    sums = "hh[r] += dot16(c.a, ha) + dot16(c.b, hb);"
    if two:
        sums += """
      mid[r] += dot16(d.a, ha) + dot16(d.b, hb) + dot16(c.a, la) + dot16(c.b, lb);
      ll[r] += dot16(d.a, la) + dot16(d.b, lb);"""
    else:
        sums += "\n      ll[r] += dot16(c.a, la) + dot16(c.b, lb);"
    rounded = (
        "round_three_planes(hh[r], mid[r], ll[r])" if two else "round_two_planes(hh[r], ll[r])"
    )
    return f"""{declared}
  for (var g = 0u; g < $groups; g++) {{
    let c = codes_of(line, g, 0u);
    {second}
    for (var r = 0u; r < ROWS; r++) {{
      let at = records[r] + 2u * g;
      let ha = q[at];
      let hb = q[at + 1u];
      let la = q[at + units];
      let lb = q[at + units + 1u];
      {sums}
    }}
  }}
  for (var r = 0u; r < ROWS; r++) {{
    y[r] = multiply({rounded}, from_bits(s[$scale + line]));
  }}"""


def sub_scale(form: CodePacking, half: str) -> str:
    """Write the sub-scale of a half of a group."""
    if not form.scaled:
        return "1"
    index = "g" if form.sub == 32 else f"2u * g + {'0u' if half == 'a' else '1u'}"
    return f"signed_byte($sub_scale + line * $sub_words, {index})"


def sub_offset(form: CodePacking, half: str) -> str:
    """Write the factor of a minimum in a half of a group."""
    if not form.offset:
        return "1"
    index = "g" if form.sub == 32 else f"2u * g + {'0u' if half == 'a' else '1u'}"
    return f"signed_byte($offset + line * $sub_words, {index})"


def _block_sums(form: CodePacking) -> str:
    """Write the sum of blocks in order, each rounded once, in runs of 8."""
    each = form.block // 32
    lows, low_sum, low_term = "", "", ""
    if form.minima:
        lows = f"let oa = {sub_offset(form, 'a')};\n        let ob = {sub_offset(form, 'b')};"
        low_sum = """
          let sums = q[records[r] + 2u * units + g / 2u];
          let odd = (g & 1u) != 0u;
          jj[r] += oa * bitcast<i32>(select(sums.x, sums.z, odd));
          jj[r] += ob * bitcast<i32>(select(sums.y, sums.w, odd));"""
        low_term = """
        let minimum = from_bits(s[$minimum + line * blocks + block]);
        term = add(term, multiply(round_int32(jj[r]), minimum));"""
    return f"""let blocks = $blocks;
  for (var run = 0u; run < blocks; run += 8u) {{
    var sum: array<f32, ROWS>;
    for (var r = 0u; r < ROWS; r++) {{ sum[r] = 0.0; }}
    for (var block = run; block < min(run + 8u, blocks); block++) {{
      var hh: array<i32, ROWS>;
      var ll: array<i32, ROWS>;
      var jj: array<i32, ROWS>;
      for (var r = 0u; r < ROWS; r++) {{ hh[r] = 0; ll[r] = 0; jj[r] = 0; }}
      for (var g = block * {each}u; g < min(block * {each}u + {each}u, $groups); g++) {{
        let c = codes_of(line, g, 0u);
        let sa = {sub_scale(form, "a")};
        let sb = {sub_scale(form, "b")};
        {lows}
        for (var r = 0u; r < ROWS; r++) {{
          let at = records[r] + 2u * g;
          hh[r] += sa * dot16(c.a, q[at]) + sb * dot16(c.b, q[at + 1u]);
          ll[r] += sa * dot16(c.a, q[at + units]) + sb * dot16(c.b, q[at + units + 1u]);{low_sum}
        }}
      }}
      let scale = from_bits(s[$scale + line * blocks + block]);
      for (var r = 0u; r < ROWS; r++) {{
        var term = multiply(round_two_planes(hh[r], ll[r]), scale);{low_term}
        sum[r] = add(sum[r], term);
      }}
    }}
    for (var r = 0u; r < ROWS; r++) {{ y[r] = add(y[r], sum[r]); }}
  }}"""


def _small_block_sums() -> str:
    """Blocks of 16 columns in order: both halves of a group, four groups a run."""
    return """let blocks = $blocks;
  for (var run = 0u; run < blocks; run += 8u) {
    var sum: array<f32, ROWS>;
    for (var r = 0u; r < ROWS; r++) { sum[r] = 0.0; }
    for (var block = run; block < min(run + 8u, blocks); block++) {
      let c = codes_of(line, block / 2u, 0u);
      let half = select(c.a, c.b, (block & 1u) != 0u);
      let scale = from_bits(s[$scale + line * blocks + block]);
      for (var r = 0u; r < ROWS; r++) {
        let hh = dot16(half, q[records[r] + block]);
        let ll = dot16(half, q[records[r] + units + block]);
        sum[r] = add(sum[r], multiply(round_two_planes(hh, ll), scale));
      }
    }
    for (var r = 0u; r < ROWS; r++) { y[r] = add(y[r], sum[r]); }
  }"""


def _wide_sums(form: CodePacking) -> str:
    """Blocks of codes of more than 8 bits: each is 128·upper + lower."""
    return """let blocks = $blocks;
  for (var run = 0u; run < blocks; run += 8u) {
    var sum: array<f32, ROWS>;
    for (var r = 0u; r < ROWS; r++) { sum[r] = 0.0; }
    for (var block = run; block < min(run + 8u, blocks); block++) {
      let found = codes_of(line, block, 0u);
      var both = array<vec4u, 2>(found.a, found.b);
      let scale = from_bits(s[$scale + line * blocks + block]);
      for (var r = 0u; r < ROWS; r++) {
        let at = records[r] + 2u * block;
        var high = array<vec4u, 2>(q[at], q[at + 1u]);
        var low = array<vec4u, 2>(q[at + units], q[at + units + 1u]);
        var upper = 0;
        var lower = 0;
        for (var i = 0u; i < 32u; i++) {
          let shift = 24u - 8u * (i % 4u);
          let x = (bitcast<i32>(high[i / 16u][(i % 16u) / 4u] << shift) >> 24u) * 256
            + (bitcast<i32>(low[i / 16u][(i % 16u) / 4u] << shift) >> 24u);
          let code = integer_of_$WIDE(both[i / 16u][(i % 16u) / 4u] << shift >> 24u);
          upper += (code >> 7u) * x;
          lower += (code & 127) * x;
        }
        let dot = round_two_planes(upper >> 1u, lower + ((upper & 1) << 7u));
        sum[r] = add(sum[r], multiply(dot, scale));
      }
    }
    for (var r = 0u; r < ROWS; r++) { y[r] = add(y[r], sum[r]); }
  }""".replace("$WIDE", form.wide)


def _sums(form: CodePacking) -> str:
    """Statements that add up the products of a line."""
    if form.wide:
        return _wide_sums(form)
    if form.block == 16:
        return _small_block_sums()
    return _block_sums(form) if form.block else _row_sums(form)


def target_text(targets: int) -> str:
    """Write the address of a row's output n: in the value whose lines it is in."""
    at = "return $out{i} + (row * $slots + slot) * $width{i} + n - $first{i};"
    lines = [
        f"if (n >= $first{i}) {{ {at.replace('{i}', str(i))} }}" for i in range(targets - 1, 0, -1)
    ]
    lines.append("return $out0 + (row * $slots + slot) * $width0 + n;")
    return "\n  ".join(lines)


def product_kernel(
    form: CodePacking, dot: str, rows: int, choice: str, own_rows: bool = False, targets: int = 1
) -> ShaderSource:
    """Make the kernel of the product with a matrix of a format.

    Parameters
    ----------
    rows : of the batch, in one workgroup. choice : see `CHOICES`.
    own_rows : whether each slot of a row meets a record of its own. targets : values that the
        outputs are parted into.
    """
    record = "(row * $slots + slot)" if own_rows else "row"
    parts = {"CHOICE": CHOICES[choice], "RECORD": record, "TARGET": target_text(targets)}
    if form.bits == 32:
        return kernel("float_product", dot, parts)
    parts |= {"ROWS": str(rows), "BLOCKS": _sums(form), **code_parts(form)}
    return kernel("product", dot, parts, ("codes", "integers"))


def embed_kernel(form: CodePacking, dot: str) -> ShaderSource:
    """Make the kernel of the look-up in a table of a format."""
    if form.bits == 32:
        return kernel("float_embed", dot)
    block = "k" if not form.block else f"k / {form.block}u"
    at = "line" if not form.block else f"line * $blocks + {block}"
    second, code = "", ""
    if form.planes == 2:
        second = (
            "let beside = codes_of(line, g, 1u);\n  low_both[0] = beside.a;\n"
            "  low_both[1] = beside.b;"
        )
        code = (
            "let low_word = low_both[i / 16u][(i % 16u) / 4u];\n    "
            "code = code * 256 + (bitcast<i32>(low_word << (24u - 8u * (i % 4u))) >> 24u);"
        )
    if form.wide:
        code = f"code = integer_of_{form.wide}(word >> (8u * (i % 4u)) & 255u);"
    if form.scaled:
        code += f"code *= signed_byte($sub_scale + line * $sub_words, k / {form.sub}u);"
    value = f"var value = multiply(f32(code), from_bits(s[$scale + {at}]));"
    if form.minima:
        low = "1"
        if form.offset:
            low = f"signed_byte($offset + line * $sub_words, k / {form.sub}u)"
        value += f"\n    let low = multiply(f32({low}), from_bits(s[$minimum + {at}]));"
        value += "\n    value = add(value, low);"
    parts = {"SECOND": second, "CODE": code, "VALUE": value, **code_parts(form)}
    return kernel("embed", dot, parts, ("codes", "integers"))
