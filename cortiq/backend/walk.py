"""A batch computed by a plan, node by node, with any array library."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Generic

import numpy as np
import numpy.typing as npt

from cortiq.backend.admission import BY_ROW
from cortiq.backend.answers import ON_HOST, Answers
from cortiq.backend.batch import Batch
from cortiq.backend.columns import Brought, Columns, named_alike
from cortiq.backend.executable import Accepted, S
from cortiq.backend.held_rows import joined
from cortiq.backend.outputs import Specimens, check_outputs, kernel_error, specimens_of
from cortiq.backend.plan import KernelPlan, Step
from cortiq.backend.row_runs import (
    RowRuns,
    runs_or_rows,
    selected_rows,
    stretches_of,
    supplied_names,
)
from cortiq.backend.segments import Segment, restricted, segments_of
from cortiq.backend.wants import drawable, value_of
from cortiq.errors import CortiqError
from cortiq.numerics.contract import OutOfDomainError
from cortiq.numerics.quantise import Quantised

_SPECIMENS: dict[type, Specimens] = {}
"""By the kind of walk."""


@dataclass
class Call:
    """A kernel's context besides its inputs.

    Attributes
    ----------
    op : the operator. weights : as they were prepared, by role. slots : names of slots, by role.
    segments : whose rows these are. faults : a flag a row, or-ed in place.
    """

    op: Any
    weights: Mapping[str, Any]
    slots: Mapping[str, str]
    segments: Sequence[Segment[Any]]
    faults: Any


@dataclass
class Group:
    """Rows of a batch that are computed together: all of them, or those that want late values.

    Attributes
    ----------
    places : which rows, in ascending order. index : the same as an array, where not all.
    segments : whose they are, numbered among these rows. faults : their flags. values : by name.
    """

    places: Sequence[int]
    index: Any
    segments: Sequence[Segment[Any]]
    faults: Any
    values: dict[str, Any] = field(default_factory=dict)


class Walk(ABC, Generic[S]):
    """A batch whose rows are numbered among the accepted ones.

    A backend says how its arrays are made and read. They are indexed by its arrays of int32, along
    the first axis, as NumPy's are; quantised rows are a `NamedTuple` of q and e.

    Attributes
    ----------
    rows, tokens : of the batch, in order. segments : whose they are. tail_places : rows that want
        late values, and `late` which. all, tail : both as groups, once the walk has started.
    alike : what every row wants, where these are arrays of numbers by name and nothing else.
    held : whether these may stay where they are; see `Batch`.
    answers : to what rows want.
    """

    answers: Answers = ON_HOST
    all: Group
    tail: Group

    def __init__(self, plan: KernelPlan, batch: Batch, accepted: Sequence[Accepted[S]]) -> None:
        self.plan, self.held = plan, batch.held
        self.rows = selected_rows(batch.rows, [sequence.indices for sequence in accepted])
        self.tokens = [token for sequence in accepted for token in sequence.tokens]
        self.supplied = supplied_names(self.rows)
        asking = [(places, wants) for places, _, wants in stretches_of(self.rows)]
        names = {wants: frozenset(map(value_of, wants)) for _, wants in asking}
        late = {wants: found - plan.known for wants, found in names.items()}
        self.wanted = frozenset[str]().union(*names.values())
        self.tail_places = [at for places, wants in asking if late[wants] for at in places]
        self.late = [found for places, wants in asking if (found := late[wants]) for _ in places]
        self.alike = named_alike(names, plan.graph.values)
        self.mixed = len(set(self.late)) > 1
        self.segments = segments_of(batch, accepted)

    def start(self) -> None:
        """Make the groups of rows, with nothing computed yet."""
        places, tail = range(len(self.rows)), self.tail_places
        self.all = self.tail = Group(places, None, self.segments, self.flags(len(places)))
        if len(tail) < len(places):
            index, segments = self.array(np.array(tail, np.int32)), restricted(self.segments, tail)
            self.tail = Group(tail, index, segments, self.flags(len(tail)))

    @abstractmethod
    def array(self, host: npt.NDArray[Any]) -> Any:
        """Return an array of the library with these values."""

    @abstractmethod
    def host(self, array: Any) -> Any:
        """Return the values of an array, which NumPy owns."""

    @abstractmethod
    def quantised(self, q: npt.NDArray[Any], e: npt.NDArray[Any]) -> Any:
        """Return quantised rows as kernels take them."""

    @abstractmethod
    def snap(self, x: Any, faults: Any) -> Any:
        """Make x [rows, ...] canonical; rows with a value outside the domain are flagged."""

    def pick(self, value: Any, index: Any) -> Any:
        """Return rows of a value, quantised or not."""
        quantised = isinstance(value, tuple)
        return value._make(part[index] for part in value) if quantised else value[index]

    def flags(self, count: int) -> Any:
        """Return a flag for each of so many rows, none set."""
        return self.array(np.zeros(count, np.bool_))

    def flag(self, faults: Any, index: Any, found: Any, concerned: Any = True) -> None:
        """Set the flags of rows `index` of `faults` where `found` has them and `concerned` too."""
        faults[index] |= found & concerned

    def call(self, step: Step, group: Group, faults: Any) -> Call:
        """Return the context of the step's kernel."""
        return Call(step.node.op, step.weights, step.node.slots, group.segments, faults)

    def compute(self) -> list[Sequence[Brought] | None]:
        """Run all needed steps; return each sequence's outputs, None for one with a fault."""
        self.walk()
        return self.brought()

    def steps(self) -> Sequence[tuple[Step, tuple[str, ...]]]:
        """Return the batch's steps, each with the values that nothing needs after it."""
        return self.plan.select(self.wanted)

    def walk(self) -> None:
        """Run every step that is needed."""
        self.start()
        for name in self.plan.graph.inputs:
            self.all.values[name] = self.input(name)
        for step, used_up in self.steps():
            self._run(step, self.tail if step.late else self.all)
            for name in used_up:
                self.all.values.pop(name, None)
                self.tail.values.pop(name, None)
        if self.late and self.tail is not self.all:
            self.flag(self.all.faults, self.tail.index, self.tail.faults)

    def _run(self, step: Step, group: Group) -> None:
        node = step.node
        inputs = [self._value(name, group) for name in node.inputs]
        mixed = step.late and self.mixed
        faults = self.flags(len(group.places)) if mixed else group.faults
        outputs = self.outputs(step, self.call(step, group, faults), inputs, len(group.places))
        for name, value in zip(node.outputs, outputs, strict=True):
            given = name in self.supplied
            group.values[name] = self._replaced(name, value, group, faults) if given else value
        if mixed:
            concerned = np.array([node.name in self.plan.needs(names) for names in self.late])
            self.flag(group.faults, slice(None), faults, self.array(concerned))

    def outputs(self, step: Step, call: Any, inputs: list[Any], rows: int) -> Sequence[Any]:
        """Compute a step; raise BackendError where its kernel makes something else."""
        node = step.node
        try:
            result = step.kernel(call, *inputs)
        except (CortiqError, OutOfDomainError, MemoryError):
            raise
        except Exception as error:  # a kernel may raise anything at all
            raise kernel_error(step, f"raised {type(error).__name__}: {error}") from error
        outputs = result if len(node.outputs) != 1 else (result,)
        check_outputs(step, outputs, self.plan.graph.values, rows, self.specimens())
        return outputs

    def specimens(self) -> Specimens:
        """Return an array of each type, as the backend makes them; made once a kind of walk."""
        kind = type(self)
        if kind not in _SPECIMENS:
            f32, i32 = (self.array(np.zeros(1, dtype)) for dtype in (np.float32, np.int32))
            q16 = self.quantised(np.zeros((1, 1), np.int32), np.zeros(1, np.int32))
            _SPECIMENS[kind] = specimens_of(f32, i32, q16)
        return _SPECIMENS[kind]

    def _value(self, name: str, group: Group) -> Any:
        if name not in group.values:
            group.values[name] = self.pick(self.all.values[name], group.index)
        return group.values[name]

    def input(self, name: str) -> Any:
        """Return a value that every row has or supplies."""
        if name in BY_ROW:
            positions = chain.from_iterable(segment.positions for segment in self.segments)
            known = self.tokens if name == "token" else [*positions]
            return self.array(np.array(known, np.int32))
        made = self.admitted if isinstance(self.rows, RowRuns) else self._supplied
        return made(name, self.supplied_parts(name), self.all.faults)

    def supplied_parts(self, name: str) -> list[Any]:
        """Return what each run of rows, or each row, supplies for a value."""
        return [row.inputs[name] for row in runs_or_rows(self.rows)]

    def _supplied(self, name: str, given: Sequence[Any], faults: Any) -> Any:
        """Return the values that rows supply, as a kernel would have left them."""
        kind = self.plan.graph.values[name]
        if kind.dtype == "q16":
            return self.quantised(*(np.stack([getattr(v, part) for v in given]) for part in "qe"))
        rows = np.stack([np.asarray(value).reshape(kind.shape) for value in given])
        return self.admitted(name, [rows], faults)

    def admitted(self, name: str, given: Sequence[Any], faults: Any) -> Any:
        """Return the values of arrays [rows, ...], one after another, that rows supply."""
        if self.plan.graph.values[name].dtype == "i32":
            return self.together(given, np.int32)
        with np.errstate(over="ignore"):  # float64 beyond float32 is infinite, and so a fault
            return self.snap(self.together(given, np.float32), faults)

    def together(self, parts: Sequence[Any], kind: Any) -> Any:
        """Return arrays one after another as one of the library."""
        return self.array(np.asarray(joined(parts)).astype(kind, copy=False))

    def _replaced(self, name: str, value: Any, group: Group, faults: Any) -> Any:
        """Replace what the node computed by the values that rows supply."""
        rows = [self.rows[at] for at in group.places]
        given = [place for place, row in enumerate(rows) if name in row.inputs]
        if not given:
            return value
        flags, index = self.flags(len(given)), self.array(np.array(given, np.int32))
        new = self._supplied(name, [rows[place].inputs[name] for place in given], flags)
        self.flag(faults, index, flags)
        return self.put(value, index, new)

    def put(self, value: Any, index: Any, rows: Any) -> Any:
        """Return a value with other rows at `index`."""
        # Picking copies: the value may be a view of the node's input.
        value = value[self.array(np.arange(len(value), dtype=np.int32))]
        value[index] = rows
        return value

    def brought(self) -> list[Sequence[Brought] | None]:
        """Return each sequence's outputs, once all is computed; None for one with a fault."""
        failed = self.host(self.all.faults)
        return [None if failed[s.cut].any() else self._answers(s) for s in self.segments]

    def _answers(self, segment: Segment[S]) -> Sequence[Brought] | None:
        if self.alike:
            rows = {want: self.values_of(value_of(want)) for want in self.alike}
            return Columns({want: self.host(value[segment.cut]) for want, value in rows.items()})
        try:
            return [
                {want: self.answers[type(want)](want, self, at) for want in self.rows[at].wants}
                for at in range(segment.start, segment.stop)
            ]
        except OutOfDomainError:  # of a draw: adjusted logits left the domain
            return None

    def values_of(self, name: str) -> Any:
        """Return the rows of a value that all rows have."""
        return (self.all if name in self.all.values else self.tail).values[name]

    def row(self, name: str, at: int) -> Any:
        """Return row `at` of a value, as the library has it."""
        if name in self.all.values:
            return self.pick(self.all.values[name], at)
        return self.pick(self.tail.values[name], bisect_left(self.tail.places, at))

    def row_of(self, name: str, at: int) -> Any:
        """Return row `at` of a value, on the host."""
        value = self.row(name, at)
        if isinstance(value, tuple):
            return Quantised(self.host(value[0]).astype(np.int32), self.host(value[1]))
        return self.host(value)

    def history(self, at: int) -> list[int]:
        """Return each id that can be drawn of those fed up to and including the row."""
        segment = next(s for s in self.segments if s.start <= at < s.stop)
        before = segment.state.tokens[: segment.positions[0]]
        ids = np.array([*before, *self.tokens[segment.start : at + 1]], np.int32)
        return drawable(ids, self.plan.graph).tolist()
