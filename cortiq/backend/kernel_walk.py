"""A batch computed by a plan, in the arrays of a library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cortiq.backend.arrays import ArrayLibrary
from cortiq.backend.batch import Batch
from cortiq.backend.executable import Accepted, S
from cortiq.backend.outputs import Specimens, specimens_of
from cortiq.backend.plan import KernelPlan, Step
from cortiq.backend.walk import Call, Group, Walk
from cortiq.ir import Node, ops


@dataclass
class KernelCall(Call):
    """A kernel's context besides its inputs; see `cortiq.backend.walk.Call`.

    Attributes
    ----------
    library : the array library. node, group : the node, and the rows that are computed.
    walk : the batch, for what its nodes have in common.
    """

    library: Any
    node: Node
    group: Group
    walk: Any

    def angles(self) -> tuple[Any, Any]:
        """Return cosines and sines [rows, 1, pairs] of a `Rope` for these rows."""
        return self.walk.angles(self.op, self.node.inputs[-1], self.group)

    @property
    def shared(self) -> dict[object, Any]:
        """Values that nodes of the batch share, by what they depend on."""
        return self.walk.shared


class KernelWalk(Walk[S]):
    """A batch under way.

    Attributes
    ----------
    library : the array library. shared : what its nodes have in common, by what it depends on.
    """

    def __init__(
        self, plan: KernelPlan, batch: Batch, accepted: Sequence[Accepted[S]], library: ArrayLibrary
    ) -> None:
        self.library = library
        self.shared: dict[object, Any] = {}
        super().__init__(plan, batch, accepted)

    def array(self, host: npt.NDArray[Any]) -> Any:
        """Return an array of the library with these values."""
        return self.library.array(host)

    def host(self, array: Any) -> Any:
        """Return the values of an array, which NumPy owns."""
        return self.library.host(array)

    def quantised(self, q: npt.NDArray[Any], e: npt.NDArray[Any]) -> Any:
        """Return quantised rows as kernels take them."""
        library = self.library
        e = library.array(e.astype(np.int32))
        return library.rows(library.cast(library.array(q), library.row_type), e)

    def snap(self, x: Any, faults: Any) -> Any:
        """Make x canonical."""
        return self.library.snap(x, faults)

    def put(self, value: Any, index: Any, rows: Any) -> Any:
        """Return a value with other rows at `index`."""
        return self.library.put(value, index, rows)

    def flags(self, count: int) -> Any:
        """Return a flag for each of so many rows, none set."""
        return self.library.flags(count)

    def flag(self, faults: Any, index: Any, found: Any, concerned: Any = True) -> None:
        """Set the flags of rows `index` of `faults` where `found` has them and `concerned` too."""
        self.library.flag(faults, index, found, concerned)

    def specimens(self) -> Specimens:
        """Return an array of each type, as the library makes them; made once a library."""
        found = self.library.specimens
        if found is None:
            f32, i32 = (self.array(np.zeros(1, dtype)) for dtype in (np.float32, np.int32))
            q16 = self.quantised(np.zeros((1, 1), np.int32), np.zeros(1, np.int32))
            found = self.library.specimens = specimens_of(f32, i32, q16)
        return found

    def call(self, step: Step, group: Group, faults: Any) -> Call:
        """Return what the step's kernel is called with."""
        node = step.node
        given = (node.op, step.weights, node.slots, group.segments, faults)
        return KernelCall(*given, self.library, node, group, self)

    def angles(self, op: ops.Rope, name: str, group: Group) -> tuple[Any, Any]:
        """Return cosines and sines of rows, looked up once for all nodes of one rotation.

        Parameters
        ----------
        name : the value that holds the positions.
        """
        key = (op.table, op.sections, name, len(group.places))
        if key not in self.shared:
            rows = [self.rows[at] for at in group.places]
            if op.sections:
                positions = np.stack([np.asarray(row.inputs[name]) for row in rows])
            else:
                positions = np.array([row.position for row in rows])
            cos, sin = self.turned(op, positions)
            self.shared[key] = self.array(cos)[:, None], self.array(sin)[:, None]
        return self.shared[key]

    def turned(self, op: ops.Rope, positions: npt.NDArray[Any]) -> Sequence[npt.NDArray[Any]]:
        """Return cosines and sines of positions, float32 [rows, pairs]."""
        if op.sections:
            return op.sections.table(op.table, positions)
        return op.table.table(positions)
