"""The base of all operators: types, weights, slots, and decomposition."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from cortiq.domains import Relation, Violation, violations
from cortiq.ir.slots import Slot

if TYPE_CHECKING:
    from cortiq.ir.graph import Scope, Value

IR_VERSION = 1
"""Version of the catalogue: a backend states the one it was built for."""


class Type(NamedTuple):
    """Type of a row value: shape of one row, and `f32`, `i32` or `q16` (a quantised row)."""

    shape: tuple[int, ...]
    dtype: str = "f32"

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


class TypeMismatchError(ValueError):
    """An operator was given inputs of other types than it takes."""


class Described:
    """Base of the dataclasses that a person reads in a printed graph."""

    def describe(self) -> str:
        """Return the fields that differ from their defaults, in one line."""
        parts = []
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if value != field.default:
                text = value.describe() if hasattr(value, "describe") else repr(value)
                parts.append(f"{field.name}={text}")
        return f"{type(self).__name__}({', '.join(parts)})"


class Op(Described):
    """Base of all operators; subclasses are frozen dataclasses whose fields are the geometry.

    A *primitive* is executed by a backend; a *layer* also has `decompose`, which writes the same
    function as a graph of simpler operators. Both give the same bits. The annotation of a field is
    its domain (`cortiq.domains`); `relations` say what fields must be to each other.
    """

    primitive = True
    relations: ClassVar[tuple[Relation, ...]] = ()

    @property
    def writes_slots(self) -> bool:
        """Whether it writes the slots of its node."""
        return False

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Infer the types of the outputs from those of the inputs; raises `TypeMismatchError`."""
        raise NotImplementedError

    def options(self) -> frozenset[str]:
        """Return the options in use; a backend declines a node with an option it does not know.

        An activation's is its function; others are those beyond the plain form of an operator.
        """
        return frozenset()

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare the shape of each weight, by role."""
        return {}

    def slot_kinds(self) -> dict[str, Slot]:
        """Declare the geometry of each state slot, by role."""
        return {}

    def decompose(self, scope: Scope, *inputs: Value) -> Value | tuple[Value, ...]:
        """Write the layer with simpler operators, through `scope`; primitives have no
        decomposition.
        """
        raise NotImplementedError

    @property
    def kind(self) -> str:
        """Name of the operator in the catalogue."""
        return type(self).__name__


class Elementwise(Op):
    """Base of primitives that keep the shape of one f32 value."""

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Require any f32 value."""
        return expect_f32(self, inputs)


class LastAxis(Op):
    """Base of primitives over the last axis of f32[..., width], which keep the shape."""

    width: int

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Require f32[..., width]."""
        (x,) = inputs
        expect_last(self, x, self.width)
        return inputs


def violations_of(op: Op) -> tuple[Violation, ...]:
    """Return the violations of the options' domains, each named after its operator."""
    return tuple(violations(op, op.kind))


def inferred(op: Op, inputs: tuple[Type, ...]) -> tuple[Type, ...]:
    """Return the types of an operator's outputs after checking its options.

    Raises
    ------
    TypeMismatchError : there are more or fewer inputs, or others, than it takes.
    """
    try:
        return op.infer(*inputs)
    except TypeMismatchError:
        raise
    except ValueError:  # of unpacking another number of inputs
        listed = ", ".join(map(str, inputs))
        raise TypeMismatchError(f"{op.kind} does not take {len(inputs)} inputs: {listed}") from None


def expect(condition: bool, message: str) -> None:
    """Raise `TypeMismatchError` with this message unless the condition holds."""
    if not condition:
        raise TypeMismatchError(message)


def expect_f32(op: Op, inputs: tuple[Type, ...]) -> tuple[Type, ...]:
    """Require one f32 input, which is the output's type too."""
    (x,) = inputs
    expect(x.dtype == "f32", f"{op.kind} takes f32, got {x}")
    return inputs


def expect_last(op: Op, type_: Type, width: int, dtypes: tuple[str, ...] = ("f32",)) -> None:
    """Require rows whose last axis is `width` wide and of one of these dtypes."""
    wanted = " or ".join(f"{d}[..., {width}]" for d in dtypes)
    expect(
        bool(type_.shape) and type_.shape[-1] == width and type_.dtype in dtypes,
        f"{op.kind} takes {wanted}, got {type_}",
    )
