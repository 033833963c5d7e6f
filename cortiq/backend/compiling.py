"""Compile a program on a backend: the one way in, where weights are checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from cortiq.backend.protocol import Backend, CompileOptions, Executable
from cortiq.backend.seam import compiled_on
from cortiq.errors import GraphError
from cortiq.ir import Program
from cortiq.numerics.layouts import Weight
from cortiq.numerics.soundness import check_finite


class CheckedWeights(Mapping[str, Weight]):
    """Weights of a program, each checked when it is first taken.

    So a tensor is read where it is packed next, and a file is read from the disk once. A weight
    that is the first rows of another is checked with that.

    Raises
    ------
    GraphError : a weight is missing, or has another shape or layout than the program says.
    FormatError : of a weight that is taken, when it holds what no weight can.
    """

    def __init__(
        self, program: Program, weights: Mapping[str, Weight], sound: set[int] | None = None
    ) -> None:
        for name, spec in program.weights.items():
            if name not in weights:
                raise GraphError("the program has no such weight to compile with", where=name)
            _check_form(name, spec.shape, spec.layout, weights[name])
        self._weights, self._names = weights, tuple(program.weights)
        self._sound = set() if sound is None else sound

    def of(self, program: Program) -> CheckedWeights:
        """Return those of a part of the program; what was checked is not checked again."""
        return CheckedWeights(program, self._weights, self._sound)

    def __getitem__(self, name: str) -> Weight:
        weight = self._weights[name]
        whole = weight if weight.whole is None else weight.whole
        if id(whole) not in self._sound:
            check_finite(whole, name)
            self._sound.add(id(whole))
        return weight

    def once(self, name: str) -> Weight:
        """Return a weight to be read once, by rows, by a caller who checks it as he reads.

        What is converted is converted row by row then, and not kept.
        """
        weight = self._weights[name]
        if weight.whole is None:
            self._sound.add(id(weight))
        return weight.once()

    def unchecked(self, name: str) -> Weight:
        """Return a weight without reading it: its shape and layout are what the program says."""
        return self._weights[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _check_form(name: str, shape: tuple[int, ...], layout: str | None, weight: Weight) -> None:
    rows = 1 if len(shape) == 1 else prod(shape[:-1])
    if weight.shape != (rows, shape[-1]):
        what = f"is {list(weight.shape)}, but the program takes {list(shape)}"
        raise GraphError(what, where=name, hint="Rows of stacks and taps lie one after the other.")
    given = "f32" if weight.layout.kind == "float" else weight.layout.name
    if layout is not None and layout != given:
        raise GraphError(f"is in {given}, but the program says {layout}", where=name)


def compile_checked(
    backend: Backend, program: Program, weights: CheckedWeights, options: CompileOptions
) -> Executable:
    """Return the executable of a verified program, no weight of which is unsound.

    Raises
    ------
    GraphError, FormatError : as `CheckedWeights`; also of weights that the backend left alone.
    BackendError : as `compiled_on`.
    """
    mine = weights.of(program)
    executable = compiled_on(backend, program, mine, options)
    try:
        taken = options.kept.taken if options.kept is not None else ()
        elsewhere = getattr(executable, "checks_weights", False)
        for name in () if elsewhere else mine:
            if name not in taken:
                mine[name]
    except BaseException:
        executable.close()
        raise
    return executable
