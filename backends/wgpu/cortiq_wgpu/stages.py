"""Stages of one row, from the steps of a request."""

from __future__ import annotations

from collections.abc import Mapping

from cortiq.backend.lower import Admit, Gather, LoweredStep, PackageOp
from cortiq.ir import ops
from cortiq.numerics.contract import F32
from cortiq_wgpu.attention_stages import (
    index_select,
    keep_listed,
    list_keys,
    merge,
    sinkhorn,
    window_blocks,
)
from cortiq_wgpu.binder import DispatchBinder
from cortiq_wgpu.block_offsets import row_words
from cortiq_wgpu.dispatch import NONE
from cortiq_wgpu.norm_stages import norm
from cortiq_wgpu.package import package_stage
from cortiq_wgpu.routing_stage import route_stage
from cortiq_wgpu.shader_source import bits, stage
from cortiq_wgpu.stage_parts import A, Bound, Maker, lanes_for, mapped
from cortiq_wgpu.step_groups import AttentionMerge

ACTIVATIONS = {
    "silu": "silu", "gelu_tanh": "gelu_tanh", "gelu": "gelu", "sigmoid": "sigmoid",
    "tanh": "tanh_", "softplus": "softplus", "relu": "relu", "relu2": "relu2",
    "exp": "exponential", "signed_root": "signed_root",
}  # fmt: skip
"""The function of each activation."""


def _wise(binder: DispatchBinder, step: LoweredStep, expression: str, **values: int) -> Bound:
    """Write the output's value i from the first input's."""
    out, x = step.outputs[0], step.inputs[0]
    body = f"x[$out + row * $n + i] = canonical({expression}, row);"
    return [mapped(body, x=binder.at(x), out=binder.at(out), n=binder.size(out), **values)]


def _pair(function: str) -> Maker:
    def make(binder: DispatchBinder, step: LoweredStep) -> Bound:
        x, y = map(binder.at, step.inputs)
        values = {"x": x, "y": y, "out": binder.at(step.outputs[0])}
        return [(stage("pair", FUNCTION=function), {**values, "n": binder.size(step.outputs[0])})]

    return make


def _constant(function: str, name: str) -> Maker:
    def make(binder: DispatchBinder, step: LoweredStep) -> Bound:
        value = bits(getattr(step.op, name))
        return _wise(binder, step, f"{function}({A}, from_bits($c))", c=value)

    return make


def _bias(binder: DispatchBinder, step: LoweredStep) -> Bound:
    place = binder.vector(step, "bias", NONE)
    expression = f"add({A}, from_bits(w[$bias + i % $width]))"
    return _wise(binder, step, expression, bias=place, width=step.op.width)


def _activation(binder: DispatchBinder, step: LoweredStep) -> Bound:
    return _wise(binder, step, f"{ACTIVATIONS[step.op.function]}({A})")


def _soft_cap(binder: DispatchBinder, step: LoweredStep) -> Bound:
    cap = F32(step.op.cap)
    expression = f"multiply(tanh_(multiply({A}, from_bits($inverse))), from_bits($cap))"
    return _wise(binder, step, expression, cap=bits(cap), inverse=bits(F32(1) / cap))


def _gain(binder: DispatchBinder, step: LoweredStep) -> Bound:
    n, width = binder.size(step.outputs[0]), step.op.width
    each = n // width if step.op.per == "head" else 1
    place = binder.vector(step, "weight", NONE)
    expression = f"multiply({A}, from_bits(w[$gains + (i / $each) % $width]))"
    return _wise(binder, step, expression, gains=place, each=each, width=width)


def _scale_rows(binder: DispatchBinder, step: LoweredStep) -> Bound:
    heads, width = binder.heads(step.inputs[0])
    factor = "from_bits(x[$y + row * $heads + i / $each])"
    y = binder.at(step.inputs[1])
    return _wise(binder, step, f"multiply({A}, {factor})", y=y, heads=heads, each=width)


def _clamp(binder: DispatchBinder, step: LoweredStep) -> Bound:
    value, values = A, {}
    for name, less in (("low", "<"), ("high", ">")):
        bound = getattr(step.op, name)
        if bound is not None:
            value = f"select({value}, from_bits(${name}), {value} {less} from_bits(${name}))"
            values[name] = bits(bound)
    return _wise(binder, step, value, **values)


def _of_expert(binder: DispatchBinder, step: LoweredStep, expression: str, **values: int) -> Bound:
    index = step.inputs[1]
    k = binder.size(index)
    each = binder.size(step.outputs[0]) // k
    place = binder.at(index)
    return _wise(binder, step, expression, index=place, k=k, each=each, **values)


EXPERT = "x[$index + row * $k + i / $each]"


def _expert_gain(binder: DispatchBinder, step: LoweredStep) -> Bound:
    place = binder.vector(step, "weight", NONE)
    return _of_expert(binder, step, f"multiply({A}, from_bits(w[$gains + {EXPERT}]))", gains=place)


def _expert_bias(binder: DispatchBinder, step: LoweredStep) -> Bound:
    place = binder.vector(step, "bias", NONE)
    bias = f"from_bits(w[$bias + {EXPERT} * $each + i % $each])"
    return _of_expert(binder, step, f"add({A}, {bias})", bias=place)


def _combine(binder: DispatchBinder, step: LoweredStep) -> Bound:
    weights, outputs = step.inputs
    body = """var y = 0.0;
    for (var j = 0u; j < $k; j++) {
      let weight = from_bits(x[$weights + row * $k + j]);
      y = add(y, multiply(weight, from_bits(x[$x + (row * $k + j) * $n + i])));
    }
    x[$out + row * $n + i] = canonical(y, row);"""
    out = step.outputs[0]
    return [mapped(
        body, k=binder.size(weights), weights=binder.at(weights), x=binder.at(outputs),
        out=binder.at(out), n=binder.size(out),
    )]  # fmt: skip


def _slice(binder: DispatchBinder, step: LoweredStep) -> Bound:
    source, out = step.inputs[0], step.outputs[0]
    body = (
        "x[$out + row * $n + i] = "
        "x[$x + row * $whole + i / $width * $last + $start + i % $width * $step];"
    )
    return [mapped(
        body, x=binder.at(source), out=binder.at(out), n=binder.size(out),
        whole=binder.size(source), last=binder.heads(source)[1], width=binder.heads(out)[1],
        start=step.op.start, step=step.op.step,
    )]  # fmt: skip


def _concat(binder: DispatchBinder, step: LoweredStep) -> Bound:
    out = step.outputs[0]
    total, start, bound = binder.heads(out)[1], 0, []
    body = (
        "x[$out + row * $whole + i / $width * $last + $start + i % $width] = x[$x + row * $n + i];"
    )
    for part in step.inputs:
        width = binder.heads(part)[1]
        bound.append(mapped(
            body, x=binder.at(part), out=binder.at(out), n=binder.size(part),
            whole=binder.size(out), last=total, width=width, start=start,
        ))  # fmt: skip
        start += width
    return bound


def _permute(binder: DispatchBinder, step: LoweredStep) -> Bound:
    value = "from_bits(x[$x + row * $n + i - i % $width + w[$order + i % $width]])"
    order, width = binder.weights.order(step.op.order), binder.heads(step.outputs[0])[1]
    return _wise(binder, step, value, order=order, width=width)


def _gather(binder: DispatchBinder, step: LoweredStep) -> Bound:
    source, copy = step.inputs[0], step.outputs[0]
    type_ = binder.type_of(copy)
    block = "q" if type_.dtype == "q16" else "x"
    body = f"{block}[$out + row * $n + i] = {block}[$x + about(row, 6u) * $n + i];"
    return [mapped(body, x=binder.at(source), out=binder.at(copy), n=row_words(type_))]


def _admit(binder: DispatchBinder, step: LoweredStep) -> Bound:
    place = binder.at(step.inputs[0])
    n = binder.size(step.inputs[0])
    body = f"x[$x + row * $n + i] = canonical({A}, row);"
    return [mapped(body, x=place, n=n)]


def _quantise(binder: DispatchBinder, step: LoweredStep) -> Bound:
    heads, width = binder.heads(step.inputs[0])
    record = binder.record(step.outputs[0])
    values = {
        "x": binder.at(step.inputs[0]), "out": record["at"], "size": record["size"],
        "units": record["units"], "heads": heads, "n": width,
        "width": lanes_for(record["units"]),
    }  # fmt: skip
    return [(stage("quantise"), values)]


def _rope(binder: DispatchBinder, step: LoweredStep) -> Bound:
    heads, width = binder.heads(step.outputs[0])
    values = {
        "x": binder.at(step.inputs[0]), "out": binder.at(step.outputs[0]), "heads": heads,
        "n": width, "pairs": step.op.table.dim // 2, "half": int(step.op.pairing == "half"),
        "angles": binder.angles.place(step.op, step.inputs[1].removesuffix("@tail")),
    }  # fmt: skip
    return [(stage("rope"), values)]


def _store(binder: DispatchBinder, step: LoweredStep) -> Bound:
    key = binder.record(step.inputs[0])
    value = {"at": 0, "size": 0, "units": 0}
    if step.op.value_dim:
        value = dict(binder.record(step.inputs[1]))
    values = {
        "heads": step.op.heads, "key_words": -(-step.op.key_dim // 4),
        "channels": step.op.value_dim, "keys": key["at"], "key_size": key["size"],
        "key_units": key["units"], "values": value["at"], "value_size": value["size"],
        "value_units": value["units"], "group": binder.page_group(step),
    }  # fmt: skip
    return [(stage("store"), values)]


def _recall(binder: DispatchBinder, step: LoweredStep) -> Bound:
    values = {
        "heads": step.op.heads, "n": step.op.dim, "out": binder.at(step.outputs[0]),
        "group": binder.page_group(step),
    }  # fmt: skip
    return [(stage("recall"), values)]


def _own_block(binder: DispatchBinder, step: LoweredStep) -> Bound:
    body = "x[$out + row * $n + i] = about(row, 1u) / $block;"
    return [mapped(body, out=binder.at(step.outputs[0]), n=1, block=step.op.block)]


def _stack_index(binder: DispatchBinder, step: LoweredStep) -> Bound:
    out = step.outputs[0]
    values = {"number": binder.at(step.inputs[0]), "out": binder.at(out), "n": binder.size(out)}
    index = "i" if step.op.every else "x[$index + row * $n + i]"
    if not step.op.every:
        values["index"] = binder.at(step.inputs[1])
    body = f"x[$out + row * $n + i] = x[$number + row] * $size + {index};"
    return [mapped(body, size=step.op.size, **values)]


MAKERS: Mapping[type, Maker] = {
    Gather: _gather,
    Admit: _admit,
    AttentionMerge: merge,
    PackageOp: package_stage,
    ops.Add: _pair("add"),
    ops.Multiply: _pair("multiply"),
    ops.Scale: _constant("multiply", "factor"),
    ops.Shift: _constant("add", "amount"),
    ops.Bias: _bias,
    ops.Activation: _activation,
    ops.SoftCap: _soft_cap,
    ops.Gain: _gain,
    ops.ScaleRows: _scale_rows,
    ops.Clamp: _clamp,
    ops.ExpertGain: _expert_gain,
    ops.ExpertBias: _expert_bias,
    ops.CombineExperts: _combine,
    ops.Slice: _slice,
    ops.Concat: _concat,
    ops.Permute: _permute,
    ops.Quantise: _quantise,
    ops.Rope: _rope,
    ops.StoreKV: _store,
    ops.Recall: _recall,
    ops.OwnBlock: _own_block,
    ops.ListKeys: list_keys,
    ops.WindowBlocks: window_blocks,
    ops.KeepListed: keep_listed,
    ops.IndexSelect: index_select,
    ops.StackIndex: _stack_index,
    ops.Sinkhorn: sinkhorn,
    ops.RMSNorm: norm("rms"),
    ops.LayerNorm: norm("layer"),
    ops.L2Norm: norm("l2"),
    ops.Softmax: norm("softmax"),
    ops.Route: route_stage,
}
"""How each step becomes stages."""
