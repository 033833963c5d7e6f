"""WGSL of the norm stages."""

from __future__ import annotations

from functools import cache

from cortiq_wgpu.shader_source import Stage, stage

LANES = 256

EACH = "for (var i = i0; i < last; i += width)"
VALUE = "from_bits(x[from_ + i])"
FOURS = "for (var i = i0; i < last; i += 4u * width)"
FOUR = """//each u 4
      let i#u = min(i + #uu * width, last - 1u);
      let v#u = select(0.0, from_bits(x[from_ + i#u]), i + #uu * width < last);
      //end"""
"""Four values at a time, so that they are loaded together; those that are missing are +0."""
SQUARES = f"""var sum = 0.0;
    {FOURS} {{
      {FOUR}
      //each u 4
      sum = add(sum, multiply(v#u, v#u));
      //end
    }}
    let total = fold(lane, width, sum);"""
MEAN = f"""var plain = 0.0;
    {EACH} {{ plain = add(plain, {VALUE}); }}
    let mean = multiply(fold(lane, width, plain), from_bits($inverse));
    var sum = 0.0;
    {EACH} {{
      let centred = from_bits(canonical(subtract({VALUE}, mean), row));
      sum = add(sum, multiply(centred, centred));
    }}
    let total = fold(lane, width, sum);"""
ROOT = "let r = divide(1.0, square_root(add({mean}, from_bits($eps))));"
SOFTMAX = f"""var largest = 0u;
    {EACH} {{ largest = max(largest, order_of(x[from_ + i])); }}
    let highest = from_bits(bits_of(fold_max(lane, width, largest)));
    var sum = 0.0;
    {EACH} {{ sum = add(sum, exp_(subtract({VALUE}, highest))); }}
    let total = fold(lane, width, sum);
    let inverse = divide(1.0, total);
    {EACH} {{
      let y = multiply(exp_(subtract({VALUE}, highest)), inverse);
      x[to + i] = canonical(y, row);
    }}"""


@cache
def norm_stage(kind: str, parameters: frozenset[str]) -> Stage:
    """Make the stage of a norm, `rms`, `l2`, `layer` or `softmax`, weight and bias or not."""
    if kind == "softmax":
        return stage("norm", KIND=kind, BODY=SOFTMAX)
    mean = "total" if kind == "l2" else "multiply(total, from_bits($inverse))"
    value = "v#u"
    if kind == "layer":
        value = "from_bits(canonical(subtract(v#u, mean), row))"
    y, beside = f"multiply({value}, r)", ""
    for role, function in (("weight", "multiply"), ("bias", "add")):
        if role in parameters:
            beside += f"let {role}#u = from_bits(w[${role} + i#u]);\n      "
            y = f"{function}({y}, {role}#u)"
    sums = MEAN if kind == "layer" else SQUARES
    body = f"""{sums}
    {ROOT.format(mean=mean)}
    {FOURS} {{
      {FOUR}
      //each u 4
      {beside}
      //end
      //each u 4
      if (i + #uu * width < last) {{ x[to + i#u] = canonical({y}, row); }}
      //end
    }}"""
    return stage("norm", KIND=kind, BODY=body)


def lanes_for(width: int) -> int:
    """Return the lanes that share a stretch: a power of two."""
    return min(LANES, 1 << max(0, width - 1).bit_length())
