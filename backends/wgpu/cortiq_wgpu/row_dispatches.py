"""Dispatches of stages: a workgroup a row, or several where a row's values are many."""

from __future__ import annotations

from itertools import groupby

from cortiq.backend.lower import LoweredStep
from cortiq.ir import ops
from cortiq_wgpu.binder import DispatchBinder
from cortiq_wgpu.dispatch import Dispatch, Grid
from cortiq_wgpu.norm_stages import LANES
from cortiq_wgpu.shader_source import staged
from cortiq_wgpu.stages import MAKERS
from cortiq_wgpu.step_groups import AttentionMerge

SINGLE = (
    ops.Add, ops.Multiply, ops.Scale, ops.Shift, ops.Bias, ops.Activation, ops.SoftCap, ops.Clamp,
)  # fmt: skip
"""Value i of the output depends on value i of each input, and on nothing else of the row."""
MANY_VALUES = 8192
"""Values of a row that are worth a dispatch of their own on a GPU."""
EACH = 1024
"""Values of a workgroup there."""
MERGED = 1024
"""Outputs of all heads that are worth it, each the end of many operations; a lane has one."""


def stage_works(binder: DispatchBinder, group: tuple[LoweredStep, ...]) -> list[Dispatch]:
    """Make the dispatches of some stages: those of many single values have one of their own."""
    works: list[Dispatch] = []
    for groups, steps in groupby(group, lambda step: _workgroups(binder, step)):
        works.append(_dispatch(binder, tuple(steps), groups))
    return works


def _workgroups(binder: DispatchBinder, step: LoweredStep) -> int:
    """Return the number of workgroups that share a row of this stage."""
    if binder.tuning is not None and isinstance(step.op, (*SINGLE, AttentionMerge)):
        n = binder.size(step.outputs[0])
        least, each = (
            (MERGED, LANES) if isinstance(step.op, AttentionMerge) else (MANY_VALUES, EACH)
        )
        return -(-n // each) if n >= least else 1
    return 1


def _dispatch(binder: DispatchBinder, group: tuple[LoweredStep, ...], width: int) -> Dispatch:
    bound = [pair for step in group for pair in MAKERS[type(step.op)](binder, step)]
    kernel = staged(tuple(stage for stage, _ in bound), binder.dot)
    slots = {slot for step in group if step.node for slot in step.node.slots.values()}
    values = tuple(values for _, values in bound)
    label = " ".join(dict.fromkeys(step.kind for step in group))
    pool = next(iter(slots), None)
    return Dispatch(kernel, values, Grid(width), group[0].tail, pool=pool, label=label)
