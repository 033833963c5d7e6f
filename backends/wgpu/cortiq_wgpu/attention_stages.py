"""Stages of attention's ends, of chosen keys, and of DeepSeek V4's operators."""

from __future__ import annotations

from cortiq.backend.lower import LoweredStep
from cortiq.numerics.attention import LN_2_F32, NO_MASS, TOTAL_BITS
from cortiq.numerics.contract import F32
from cortiq.numerics.route import NEVER
from cortiq_wgpu.binder import DispatchBinder
from cortiq_wgpu.dispatch import NONE
from cortiq_wgpu.norm_stages import norm
from cortiq_wgpu.shader_source import bits, stage
from cortiq_wgpu.stage_parts import A, Bound, mapped


def list_keys(binder: DispatchBinder, step: LoweredStep) -> Bound:
    """Make the stage that lists the last keys."""
    body = """let end = about(row, 1u) + 1u;
    let there = end / $every;
    let entry = select(0u, there - $n, there > $n) + i;
    let beyond = end + entry - there;
    x[$out + row * $n + i] = select(beyond, (entry + 1u) * $every - 1u, entry < there);"""
    return [mapped(body, out=binder.at(step.outputs[0]), n=step.op.top, every=step.op.every)]


def window_blocks(binder: DispatchBinder, step: LoweredStep) -> Bound:
    """Make the stage of the windows that keys close, and of the row's own."""
    body = """let own = about(row, 1u);
    let last = max(x[$keys + row * $top + $top - 1u], own) + 1u;
    let key = select(last, x[$keys + row * $top + min(i, $top - 1u)], i < $top);
    let beyond = (own + 1u) / $every + key - own - 1u;
    x[$out + row * $n + i] = select(key / $every, beyond, key > own);"""
    keys, out = step.inputs[0], step.outputs[0]
    values = {"keys": binder.at(keys), "top": binder.size(keys), "every": step.op.every}
    return [mapped(body, out=binder.at(out), n=binder.size(out), **values)]


def keep_listed(binder: DispatchBinder, step: LoweredStep) -> Bound:
    """Make the stage that keeps the scores of the experts that a token lists."""
    body = f"""var listed = false;
    for (var k = 0u; k < $listed; k++) {{
      let expert = from_bits(w[$table + about(row, 0u) * $listed + k]);
      listed = listed || expert == f32(i);
    }}
    x[$out + row * $n + i] = select($never, bitcast<u32>({A}), listed);"""
    values = {"table": binder.vector(step, "table", NONE), "listed": step.op.listed}
    x, out = binder.at(step.inputs[0]), binder.at(step.outputs[0])
    return [mapped(body, x=x, out=out, n=step.op.experts, never=bits(NEVER), **values)]


def index_select(binder: DispatchBinder, step: LoweredStep) -> Bound:
    """Make the stage that takes values by their indices."""
    body = """let at = from_bits(w[$index + i]);
    let there = at >= 0.0 && at < f32($whole);
    let value = x[$x + row * $whole + select(0u, u32(at), there)];
    x[$out + row * $n + i] = select($never, value, there);"""
    values = {"index": binder.vector(step, "index", NONE), "whole": step.op.in_width}
    x, out = binder.at(step.inputs[0]), binder.at(step.outputs[0])
    return [mapped(body, x=x, out=out, n=step.op.out_width, never=bits(NEVER), **values)]


def sinkhorn(binder: DispatchBinder, step: LoweredStep) -> Bound:
    """Make the stages of the Sinkhorn-Knopp iteration: the softmax, then the rounds."""
    values = {
        "out": binder.at(step.outputs[0]), "n": step.op.streams, "rounds": step.op.rounds,
        "eps": bits(F32(step.op.eps)),
    }  # fmt: skip
    return [*norm("softmax")(binder, step), (stage("sinkhorn"), values)]


MASS = """if (c == 0u) {
      let empty = total.exponent == NONE;
      let whole = multiply(f32(total.exponent - i32($total_bits)), from_bits($ln_2));
      let mass = add(log_(select(total.value, 1.0, empty)), whole);
      x[$mass + row * $heads + head] = select(canonical(mass, row), $no_mass, empty);
    }"""
"""The logarithm of the sum of a head's exponentials."""


def merge(binder: DispatchBinder, step: LoweredStep) -> Bound:
    """Make the stage that adds up the runs of attention, and its mass if that is wanted."""
    values = {
        "heads": step.op.attend.heads, "channels": step.op.attend.value_dim,
        "sinks": binder.vector(step, "sinks", NONE), "out": binder.at(step.outputs[0]),
    }  # fmt: skip
    if not step.op.attend.mass:
        return [(stage("merge", MASS=""), values)]
    values |= {
        "mass": binder.at(step.outputs[1]), "total_bits": TOTAL_BITS, "ln_2": bits(LN_2_F32),
        "no_mass": bits(NO_MASS),
    }  # fmt: skip
    return [(stage("merge", MASS=MASS), values)]
