"""Dispatches of stages: a workgroup a row, or several where a row's values are many."""

from __future__ import annotations

from cortiq.ir import ops
from cortiq_wgpu.binder import Binder
from cortiq_wgpu.lower import Step
from cortiq_wgpu.source import staged
from cortiq_wgpu.stages import MAKERS
from cortiq_wgpu.work import Grid, Work

SINGLE = (
    ops.Add, ops.Multiply, ops.Scale, ops.Shift, ops.Bias, ops.Activation, ops.SoftCap, ops.Clamp,
)  # fmt: skip
"""Value i of the output depends on value i of each input, and on nothing else of the row."""
MANY_VALUES = 8192
"""Values of a row that are worth a dispatch of their own on a GPU."""
EACH = 1024
"""Values of a workgroup there."""


def stage_works(binder: Binder, group: tuple[Step, ...]) -> list[Work]:
    """The dispatches of some stages: those of many single values that come first, and the rest."""
    first = 0
    if binder.tuning is not None and isinstance(group[0].op, SINGLE):
        n = binder.size(group[0].outputs[0])
        while n >= MANY_VALUES and first < len(group) and _is_single(binder, group[first], n):
            first += 1
        width = -(-n // EACH)
    parts = [(group[:first], width)] if first else []
    parts += [(group[first:], 1)] if first < len(group) else []
    return [_dispatch(binder, *part) for part in parts]


def _is_single(binder: Binder, step: Step, n: int) -> bool:
    return isinstance(step.op, SINGLE) and binder.size(step.outputs[0]) == n


def _dispatch(binder: Binder, group: tuple[Step, ...], width: int) -> Work:
    bound = [pair for step in group for pair in MAKERS[type(step.op)](binder, step)]
    kernel = staged(tuple(stage for stage, _ in bound), binder.dot)
    slots = {slot for step in group if step.node for slot in step.node.slots.values()}
    values = tuple(values for _, values in bound)
    label = " ".join(dict.fromkeys(type(step.op).__name__ for step in group))
    pool = next(iter(slots), None)
    return Work(kernel, values, Grid(width), group[0].tail, pool=pool, label=label)
