"""Checks of what kernels return: as many outputs as the graph has, of its types and rows.

A wrong type would pass through the next kernels and be another number in the end; a row too few
would be an error of whoever reads it. Here it is one of the kernel, with its node and operator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cortiq.backend.answer_checks import described
from cortiq.backend.plan import Step
from cortiq.errors import BackendError
from cortiq.ir import Type


class Specimens(NamedTuple):
    """An array library's types: of f32, of i32, and of the parts of q16."""

    f32: Any
    i32: Any
    q16: tuple[Any, Any]


def specimens_of(f32: Any, i32: Any, q16: Any) -> Specimens:
    """Return the types of an array of each."""
    q, e = q16
    return Specimens(f32.dtype, i32.dtype, (q.dtype, e.dtype))


def kernel_error(step: Step, what: str) -> BackendError:
    """Return the error of a kernel: which one, of which node and operator, and what it did."""
    kernel = step.kernel
    name = f"{getattr(kernel, '__module__', '')}.{getattr(kernel, '__qualname__', repr(kernel))}"
    node = step.node
    return BackendError(f"the kernel {name} {what}", where=f"node {node.name!r}, {node.op.kind}")


def check_outputs(
    step: Step, outputs: Any, values: Mapping[str, Type], rows: int, specimens: Specimens
) -> None:
    """Refuse outputs that are not what the graph says of them.

    Parameters
    ----------
    outputs : of the step's kernel, one for each output of the node.
    values : types of the graph's values, by name.
    rows : how many rows the kernel was given.

    Raises
    ------
    BackendError : names the node, the operator, the kernel, and what is wrong.
    """
    names = step.node.outputs
    if type(outputs) is tuple and len(outputs) == len(names):
        for name, output in zip(names, outputs, strict=True):
            if not _fits(output, values[name], rows, specimens):
                break
        else:
            return
    if not isinstance(outputs, tuple | list) or len(outputs) != len(names):
        count = len(outputs) if isinstance(outputs, tuple | list) else type(outputs).__name__
        raise kernel_error(step, f"returned {count}; it returns a tuple of {len(names)} outputs")
    for name, output in zip(names, outputs, strict=True):
        kind = values[name]
        if kind.dtype == "q16":
            _check_quantised(step, name, output, (rows, *kind.shape), specimens.q16)
        else:
            dtype = specimens.f32 if kind.dtype == "f32" else specimens.i32
            _check(step, name, output, (rows, *kind.shape), dtype)


def _fits(output: Any, kind: Type, rows: int, specimens: Specimens) -> bool:
    """Check an output in the cheapest way: every node of a batch pays for it."""
    shape, dtype = kind
    try:
        if dtype == "f32":
            return output.dtype == specimens.f32 and output.shape == (rows, *shape)
        if dtype == "i32":
            return output.dtype == specimens.i32 and output.shape == (rows, *shape)
    except AttributeError:
        pass
    return False


def _check_quantised(
    step: Step, name: str, output: Any, shape: tuple[int, ...], dtypes: Sequence[Any]
) -> None:
    """A named tuple of integers and exponents."""
    if not isinstance(output, tuple) or not hasattr(output, "_make") or len(output) != len(dtypes):
        what = f"returned {described(output)} for {name!r}; it returns quantised rows: q and e"
        raise kernel_error(step, what)
    _check(step, f"{name}, q", output[0], shape, dtypes[0])
    _check(step, f"{name}, e", output[1], shape[:-1], dtypes[1])


def _check(step: Step, name: str, output: Any, shape: tuple[int, ...], dtype: Any) -> None:
    found = getattr(output, "shape", None)
    if found is None or tuple(found) != shape or getattr(output, "dtype", None) != dtype:
        wanted = f"{str(dtype).rpartition('.')[2]}{list(shape)}"
        what = f"returned {described(output)} for {name!r}; it returns {wanted}, a row for each row"
        raise kernel_error(step, what)
