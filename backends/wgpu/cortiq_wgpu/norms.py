"""Texts of the norm stages."""

from __future__ import annotations

from functools import cache

from cortiq_wgpu.source import Stage, stage

EACH = "for (var i = i0; i < last; i += width)"
VALUE = "from_bits(x[from_ + i])"
SQUARES = f"""var sum = 0.0;
    {EACH} {{ sum = add(sum, multiply({VALUE}, {VALUE})); }}
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
    """The stage of a norm: `rms`, `l2`, `layer` or `softmax`, with a weight and a bias or not."""
    if kind == "softmax":
        return stage("norm", KIND=kind, BODY=SOFTMAX)
    mean = "total" if kind == "l2" else "multiply(total, from_bits($inverse))"
    value = VALUE
    if kind == "layer":
        value = f"from_bits(canonical(subtract({VALUE}, mean), row))"
    y = f"multiply({value}, r)"
    if "weight" in parameters:
        y = f"multiply({y}, from_bits(w[$weight + i]))"
    if "bias" in parameters:
        y = f"add({y}, from_bits(w[$bias + i]))"
    sums = MEAN if kind == "layer" else SQUARES
    body = f"""{sums}
    {ROOT.format(mean=mean)}
    {EACH} {{ x[to + i] = canonical({y}, row); }}"""
    return stage("norm", KIND=kind, BODY=body)
