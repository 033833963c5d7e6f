"""The stage that chooses experts."""

from __future__ import annotations

from collections.abc import Mapping

from cortiq.backend.lower import LoweredStep
from cortiq.numerics.contract import F32
from cortiq_wgpu.binder import DispatchBinder
from cortiq_wgpu.dispatch import NONE
from cortiq_wgpu.shader_source import Stage, bits, stage

MOST_CHOSEN = 32
MOST_GROUPS = 1024

SCORES = "for (var i = lane; i < n; i += LANES) { x[values + i] = x[scores + i]; }"
VALUES = {
    "softmax_topk": SCORES,
    "sparse_mixer": SCORES,
    "sigmoid": """for (var i = lane; i < n; i += LANES) {
    x[values + i] = canonical(sigmoid(from_bits(x[scores + i])), row);
  }""",
    "sqrt_softplus": """for (var i = lane; i < n; i += LANES) {
    let s = from_bits(canonical(softplus(from_bits(x[scores + i])), row));
    let root = square_root(select(1.0, s, s > 0.0));
    x[values + i] = select(0u, bitcast<u32>(root), s > 0.0);
  }""",
    "softmax": """var largest = 0u;
  for (var i = lane; i < n; i += LANES) { largest = max(largest, order_of(x[scores + i])); }
  let highest = from_bits(bits_of(fold_max(lane, LANES, largest)));
  var sum = 0.0;
  for (var i = lane; i < n; i += LANES) {
    sum = add(sum, exp_(subtract(from_bits(x[scores + i]), highest)));
  }
  let inverse = divide(1.0, fold(lane, LANES, sum));
  for (var i = lane; i < n; i += LANES) {
    let p = exp_(subtract(from_bits(x[scores + i]), highest));
    x[values + i] = canonical(multiply(p, inverse), row);
  }""",
}
"""What each expert's p is."""
PLAIN = """for (var i = 0u; i < k; i++) {
    let at = x[indices + i];
    x[weights + i] = select(0u, x[values + at], admitted(at));
  }"""
TOPK = """var highest = LOWEST();
  for (var i = 0u; i < k; i++) {
    let at = x[indices + i];
    if (admitted(at)) { highest = max(highest, from_bits(x[values + at])); }
  }
  for (var i = 0u; i < 256u; i++) { lanes[i] = 0.0; }
  for (var i = 0u; i < k; i++) {
    let at = x[indices + i];
    if (admitted(at)) { lanes[i] = exp_(subtract(from_bits(x[values + at]), highest)); }
  }
  for (var i = 0u; i < k; i++) { x[weights + i] = bitcast<u32>(lanes[i]); }
  for (var half = 128u; half > 0u; half /= 2u) {
    for (var i = 0u; i < half; i++) { lanes[i] = add(lanes[i], lanes[i + half]); }
  }
  let inverse = divide(1.0, select(1.0, lanes[0], lanes[0] > 0.0));
  for (var i = 0u; i < k; i++) {
    x[weights + i] = canonical(multiply(from_bits(x[weights + i]), inverse), row);
  }"""

MIXED = """for (var c = 0u; c < k; c++) {
    let at = x[indices + c];
    let m = from_bits(x[scores + at]);
    for (var i = 0u; i < 256u; i++) { lanes[i] = 0.0; }
    for (var j = 0u; j < $experts; j++) {
      let s = from_bits(x[scores + j]);
      let behind = s < m || (s == m && j >= at);
      let near = subtract(m, s) <= multiply(from_bits($margin), max(abs(s), m));
      if (admitted(j) && behind && near) {
        lanes[j % 256u] = add(lanes[j % 256u], exp_(subtract(s, m)));
      }
    }
    for (var half = 128u; half > 0u; half /= 2u) {
      for (var i = 0u; i < half; i++) { lanes[i] = add(lanes[i], lanes[i + half]); }
    }
    let weight = divide(1.0, select(1.0, lanes[0], lanes[0] > 0.0));
    x[weights + c] = select(0u, bitcast<u32>(weight), admitted(at));
  }"""
WEIGHTS = {"softmax_topk": TOPK, "sparse_mixer": MIXED}
"""Weights of the chosen experts, where these are not their p."""


def route_stage(binder: DispatchBinder, step: LoweredStep) -> list[tuple[Stage, Mapping[str, int]]]:
    """Make the stage that chooses a router's experts."""
    op, router = step.op, step.op.router
    weights = WEIGHTS.get(router.kind, PLAIN)
    text = stage("route", KIND=router.kind, VALUES=VALUES[router.kind], WEIGHTS=weights)
    index, out, beside = step.outputs
    scaling = 0 if router.routed_scaling == 1 else bits(router.routed_scaling)
    values = {
        "experts": op.experts,
        "x": binder.at(step.inputs[0]),
        "p": binder.at(beside),
        "bias": binder.vector(step, "bias", NONE),
        "mask": binder.vector(step, "mask", NONE),
        "groups": router.groups,
        "kept_groups": router.kept_groups,
        "top2": int(router.group_score == "top2"),
        "k": router.top_k,
        "index": binder.at(index),
        "out": binder.at(out),
        "tau": 0 if router.tau is None else bits(F32(router.tau)),
        "margin": bits(F32(router.margin or 0)),
        "renormalise": int(router.renormalise),
        "floor": bits(F32(router.denominator_floor)),
        "scaling": scaling,
    }
    return [(text, values)]
