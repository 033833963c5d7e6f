"""Steps from a text's pooled row to its vector, as an entry of the program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cortiq.errors import FormatError
from cortiq.formats.sentence_settings import DENSE, NORM, SentenceStep
from cortiq.ir import Builder, Program, Value
from cortiq.ir.encoders import POOLED, SENTENCE
from cortiq.ir.layers import LayerNorm, Linear
from cortiq.ir.ops import Activation, L2Norm
from cortiq.models.registry import location_of, said_of
from cortiq.models.tensors import CheckpointTensors
from cortiq.numerics.contract import SMALLEST_EXPONENT

NORM_EPS = 1e-5
"""Epsilon of torch's LayerNorm where a module names none."""
UNIT_EPS = 2.0**SMALLEST_EXPONENT
GGUF_MODULES = ("2_Dense.linear", "3_Dense.linear")
"""Dense modules of EmbeddingGemma by their tensors' names in the folder, which a family's table
may have GGUF names for; their activation is none.
"""


def with_sentence_steps(program: Program, tensors: CheckpointTensors) -> Program:
    """Return the program with the entry `SENTENCE`, if the model's files have steps for it.

    Its input `POOLED` is float32 [width of `hidden`], its output `SENTENCE` the text's vector.

    Raises
    ------
    FormatError : a step takes a row of another width than the one before it gives.
    """
    steps, checkpoint = _steps(tensors), tensors.checkpoint
    if not steps or "hidden" not in program.trunk.values:
        return program
    with said_of(checkpoint):
        b = Builder(context=program.context)
        b.weights |= program.weights
        b.input("position")
        x = b.input(POOLED, program.trunk.values["hidden"].shape, "f32")
        for number, step in enumerate(steps):
            _check_width(step, x.type.shape[-1], location_of(checkpoint))
            x = _written(b, step, x, SENTENCE if step is steps[-1] else f"{SENTENCE}.{number}")
        graph = b.graph(SENTENCE, (SENTENCE,))
    graphs = {**program.graphs, SENTENCE: graph}
    return replace(program, graphs=graphs, weights=b.weights)


def _steps(tensors: CheckpointTensors) -> Sequence[SentenceStep]:
    """Return the steps that the files name; of a scaling at their end, `normalise` decides."""
    checkpoint = tensors.checkpoint
    stated = getattr(checkpoint, "sentence", None)
    if stated is not None:
        steps = list(stated.steps)
        while steps and not steps[-1].tensors:
            steps.pop()
        return steps
    found = [name for name in GGUF_MODULES if tensors.called(f"{name}.weight") in checkpoint]
    shapes = [checkpoint.tensor(tensors.called(f"{name}.weight")).shape for name in found]
    for name, shape in zip(found, shapes, strict=True):
        if len(shape) != 2:
            what = f"{tensors.called(f'{name}.weight')} is {list(shape)}, not a matrix"
            raise FormatError(what, where=location_of(checkpoint))
    return [
        SentenceStep(DENSE, name, shape[-1], shape[0])
        for name, shape in zip(found, shapes, strict=True)
    ]


def _check_width(step: SentenceStep, width: int, where: str) -> None:
    if step.inputs not in (0, width):
        what = f"{step.tensors} takes {step.inputs} values, but is given {width}"
        raise FormatError(what, where=where)


def _written(b: Builder, step: SentenceStep, x: Value, name: str) -> Value:
    width = x.type.shape[-1]
    if step.kind == DENSE:
        op = Linear(width, step.outputs, step.biased)
        weights = {role: f"{step.tensors}.{role}" for role in op.weight_shapes()}
        y = b.add(op, x, name=f"{name}.linear" if step.act else name, weights=weights)
        return b.add(Activation(step.act), y, name=name) if step.act else y
    if step.kind == NORM:
        norm = LayerNorm(width, NORM_EPS)
        weights = {role: f"{step.tensors}.{role}" for role in norm.weight_shapes()}
        return b.add(norm, x, name=name, weights=weights)
    return b.add(L2Norm(width, UNIT_EPS), x, name=name)
