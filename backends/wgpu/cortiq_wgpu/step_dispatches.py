"""Dispatches of wide steps: products, look-ups, attention's runs, convolutions, recurrences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import accumulate

from cortiq.backend.extents import ring_rows
from cortiq.backend.lower import LoweredStep
from cortiq.ir import Ring, ops
from cortiq.numerics.contract import Floats
from cortiq_wgpu.binder import DispatchBinder
from cortiq_wgpu.dispatch import MOST_TURNS, NONE, SEGMENTS, Dispatch, Grid
from cortiq_wgpu.product_dispatches import embed_rows, matrix_products, stack_products
from cortiq_wgpu.shader_source import bits, kernel, stage, staged
from cortiq_wgpu.step_groups import AttentionSplits

LANES = 64

CHOSEN = """
  let list = $chosen + (row * $sets + head / ($heads / $sets)) * $listed;
  var low = 0u;
  var high = $listed;
  while (low < high) {  // the list ascends
    let middle = (low + high) / 2u;
    if (x[list + middle] < key / $block) { low = middle + 1u; } else { high = middle; }
  }
  return low < $listed && x[list + min(low, $listed - 1u)] == key / $block;
"""
SLOPED = """
  var steep = array<u32, {count}>({values});
  let ahead = f32(i32(key) - i32(own));
  return add(s, multiply(from_bits(steep[head]), ahead));
"""


def _sloped(steep: Floats) -> str:
    """Return what a score is made of that falls with distance, or the score."""
    values = ", ".join(f"{bits(m)}u" for m in steep)
    return SLOPED.format(count=len(steep), values=values) if len(steep) else "return s;"


def _spread(binder: DispatchBinder, step: LoweredStep) -> list[Dispatch]:
    op, record = step.op.attend, binder.record(step.inputs[0])
    constants = binder.scoring[op]
    values = {
        "q": record["at"],
        "key_size": record["size"],
        "key_units": record["units"],
        "key_words": -(-op.key_dim // 4),
        "channels": op.value_dim,
        "group": binder.page_group(step),
        "heads": op.heads,
        "kv_heads": op.kv_heads,
        "window": op.window or 0,
        "factor": bits(constants.factor),
        "cap": bits(constants.cap),
        "inverse_cap": bits(constants.inverse_cap),
    }
    chosen = "return true;"
    if op.block:
        chosen = CHOSEN
        sets, listed = binder.type_of(step.inputs[2]).shape
        values |= {
            "chosen": binder.at(step.inputs[2]),
            "sets": sets,
            "listed": listed,
            "block": op.block,
        }
    last = "about(row, 1u)"
    if op.until:
        last = "x[$last + row]"
        values["last"] = binder.at(step.inputs[1])
    channels = max(1, -(-op.value_dim // LANES))
    turns = 16 * (values["key_words"] + 17 * channels + 8)
    runs = max(1, MOST_TURNS // turns)
    parts = {"CHANNELS": str(channels), "CHOSEN": chosen, "RUNS": str(runs), "LAST": last}
    parts["SLOPED"] = _sloped(binder.steepness[op])
    assert step.node is not None
    pool = step.node.slots["kv"]

    def made(begin: int, heads: int) -> Dispatch:
        text = kernel("attend", binder.dot, {**parts, "HEADS": str(heads)})
        grid = Grid(op.heads // heads, parts=True)
        return Dispatch(
            text, ({**values, "begin": begin},), grid, step.tail, pool=pool, begin=begin
        )

    beside = _heads_beside(op, channels) if binder.tuning is not None else 1
    return [
        replace(made(begin, 1), many=made(begin, beside) if beside > 1 else None)
        for begin in range(0, -(-binder.context // 1024), runs)
    ]


def _heads_beside(op: ops.Attend, channels: int) -> int:
    """Count heads with shared keys that are computed together, bounded by a lane's registers."""
    group = op.heads // op.kv_heads
    return max(n for n in range(1, 5) if group % n == 0 and (n == 1 or n * channels <= 8))


def _choice(binder: DispatchBinder, step: LoweredStep) -> dict[str, int]:
    """Return the parameters that choices of blocks and of keys share."""
    key, op = binder.record(step.inputs[0]), step.op
    return {
        "q": key["at"],
        "key_size": key["size"],
        "key_units": key["units"],
        "key_words": -(-op.key_dim // 4),
        "heads": op.heads,
        "group": binder.page_group(step),
        "top": op.top,
        "out": binder.at(step.outputs[0]),
    }


def _choose(binder: DispatchBinder, step: LoweredStep) -> list[Dispatch]:
    op = step.op
    values = {**_choice(binder, step), "block": op.block, "local": op.local}
    text = staged((stage("blocks"),), binder.dot)
    assert step.node is not None
    pool = step.node.slots["kv"]
    return [
        Dispatch(text, ({**values, "head": head},), Grid(), step.tail, pool=pool)
        for head in range(op.heads)
    ]


def _choose_keys(binder: DispatchBinder, step: LoweredStep) -> list[Dispatch]:
    op = step.op
    levels, weights = max(1, (op.heads - 1).bit_length()), binder.at(step.inputs[2])
    values = {**_choice(binder, step), "levels": levels, "weights": weights, "every": op.every}
    assert step.node is not None
    text = staged((stage("keys"),), binder.dot)
    return [Dispatch(text, (values,), Grid(), step.tail, pool=step.node.slots["kv"])]


KEPT_ROW = """let gate = i - $half;
    if (i < $half) { x[$out + row * $n + i] = x[$x + row * $half + i]; continue; }
    let bias = from_bits(w[$bias + about(row, 1u) % $rate * $half + gate]);
    x[$out + row * $n + i] = canonical(add(from_bits(x[$z + row * $half + gate]), bias), row);"""
"""A row, and its gates with the bias of its place in the window, as a ring keeps them."""


def _compress(binder: DispatchBinder, step: LoweredStep) -> list[Dispatch]:
    assert step.node is not None
    pool, op = step.node.slots["ring"], step.op
    ring = binder.pools.slots[pool]
    assert isinstance(ring, Ring)
    out, kept = map(binder.at, step.outputs)
    half = op.parts * op.width
    values = {"n": 2 * half, "capacity": ring_rows(ring), "x": kept}
    rows = {
        "x": binder.at(step.inputs[0]),
        "z": binder.at(step.inputs[2]),
        "bias": binder.vector(step, "bias", NONE),
        "rate": op.rate,
        "half": half,
        "out": kept,
        "n": 2 * half,
    }
    entry = {**values, "out": out, "width": op.width, "rate": op.rate, "parts": op.parts}
    grids = Grid(-(-op.width // LANES)), Grid(-(-2 * half // LANES))
    return [
        Dispatch(staged((stage("map", BODY=KEPT_ROW),), binder.dot), (rows,), Grid(), step.tail),
        Dispatch(kernel("compress", binder.dot), (entry,), grids[0], step.tail, pool=pool),
        Dispatch(kernel("ring", binder.dot), (values,), grids[1], step.tail, pool=pool),
    ]


def _conv(binder: DispatchBinder, step: LoweredStep) -> list[Dispatch]:
    assert step.node is not None
    pool, n = step.node.slots["ring"], step.op.width
    ring = binder.pools.slots[pool]
    assert isinstance(ring, Ring)
    values = {
        "n": n,
        "taps": step.op.kernel,
        "capacity": ring_rows(ring),
        "weight": binder.vector(step, "weight", NONE),
        "bias": binder.vector(step, "bias", NONE),
        "x": binder.at(step.inputs[0]),
        "out": binder.at(step.outputs[0]),
    }
    grid = Grid(-(-n // LANES))
    works = [Dispatch(kernel("conv", binder.dot), (values,), grid, step.tail, pool=pool)]
    if step.op.kernel > 1:
        works.append(Dispatch(kernel("ring", binder.dot), (values,), grid, step.tail, pool=pool))
    return works


def _hash(binder: DispatchBinder, step: LoweredStep) -> list[Dispatch]:
    """Make the dispatches of hashed n-grams: the rows' numbers, and their tokens to the ring."""
    assert step.node is not None
    pool, op = step.node.slots["ring"], step.op
    ring, heads = binder.pools.slots[pool], len(op.heights)
    assert isinstance(ring, Ring)
    firsts = accumulate(op.heights[:-1], initial=0)
    words = (f"vec2u({m & 0xFFFFFFFF}u, {m >> 32}u)" for m in op.multipliers)
    parts = {
        "FACTORS": ", ".join(words),
        "HEIGHTS": ", ".join(f"{n}u" for n in op.heights),
        "FIRSTS": ", ".join(f"{n}u" for n in firsts),
        "SIZE": str(len(op.multipliers)),
        "HEADS": str(heads),
    }
    kept = {"capacity": ring_rows(ring)}
    values = {
        **kept,
        "heads": heads,
        "each": heads // (len(op.multipliers) - 1),
        "end": op.end,
        "out": binder.at(step.outputs[0]),
    }
    text, grid = kernel("hash", binder.dot, parts), Grid(-(-heads // LANES))
    keep = kernel("hash_ring", binder.dot)
    return [
        Dispatch(text, (values,), grid, step.tail, pool=pool),
        Dispatch(keep, (kept,), Grid(), step.tail, pool=pool),
    ]


def _recurrence(binder: DispatchBinder, step: LoweredStep) -> list[Dispatch]:
    op = step.op
    is_delta = isinstance(op, ops.DeltaRule)
    roles = ("q", "k", "v", "alpha", "beta") if is_delta else ("v", "k", "q", "alpha", "beta")
    values = {role: binder.at(name) for role, name in zip(roles, step.inputs, strict=True)}
    assert step.node is not None
    pool = step.node.slots["state"]
    rows = binder.pools.recurrences[pool]
    values |= {**rows.values, "out": binder.at(step.outputs[0]), "step": rows.each}
    heads, _, columns = rows.slot.shape
    grid = Grid(-(-columns // LANES), z=heads, over=SEGMENTS)
    text = rows.shader(binder.dot)
    return [
        Dispatch(text, ({**values, "begin": begin},), grid, step.tail, pool=pool, begin=begin)
        for begin in range(0, binder.rows, rows.each)
    ]


MAKERS: Mapping[type, Callable[[DispatchBinder, LoweredStep], list[Dispatch]]] = {
    ops.HeadMatMul: stack_products,
    ops.ExpertMatMul: stack_products,
    ops.EmbedRows: embed_rows,
    AttentionSplits: _spread,
    ops.ChooseBlocks: _choose,
    ops.ChooseKeys: _choose_keys,
    ops.Compress: _compress,
    ops.CausalConv: _conv,
    ops.HashNGrams: _hash,
    ops.DeltaRule: _recurrence,
    ops.StateSpace: _recurrence,
}
"""How each wide step becomes dispatches."""


def dispatches(binder: DispatchBinder, group: tuple[LoweredStep, ...]) -> list[Dispatch]:
    """Make the dispatches of a wide step, or of products with neighbouring matrices."""
    if isinstance(group[0].op, ops.MatMul):
        return matrix_products(binder, group)
    return MAKERS[type(group[0].op)](binder, group[0])
