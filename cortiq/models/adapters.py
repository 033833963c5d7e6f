"""LoRA adapters merged into a checkpoint's tensors, before anything is quantised.

A merged matrix is float32: RN(W + s·B·A), computed in float64. The products are of integers that
float64 holds exactly, so that no order of summation, and no library, changes a bit of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import prod
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cortiq.errors import FormatError, UnsupportedError
from cortiq.formats.adapter import Adapter, LowRank
from cortiq.formats.packed_tensors import PackedTensor
from cortiq.formats.text_model import NAME_PREFIXES
from cortiq.ir import Program
from cortiq.models.adapter_rows import Rows, turned_rows
from cortiq.models.config import BaseConfig
from cortiq.models.exact_products import exact_product, row_sums
from cortiq.models.open_checkpoint import OpenCheckpoint
from cortiq.models.parts import HEAD, TABLE
from cortiq.models.registry import location_of, names_of
from cortiq.models.tensors import untied
from cortiq.models.weights import raw_weight
from cortiq.numerics.dequantise import embedding_rows
from cortiq.numerics.layouts import LAYOUTS, Weight, floats

Doubles = npt.NDArray[np.float64]

FACT = "adapters"
"""Fact of a program: hash and scale of every adapter, in order."""
_SLICE_ELEMENTS = 1 << 22


@dataclass(frozen=True)
class WholeTensor:
    """A tensor that an adapter holds in place of the model's."""

    name: str
    shape: tuple[int, ...]
    type: str
    raw: npt.NDArray[np.uint8]


def adapted(
    program: Program,
    checkpoint: OpenCheckpoint,
    adapters: Sequence[Adapter],
    family: ModuleType,
    config: BaseConfig,
) -> tuple[Program, OpenCheckpoint]:
    """Return the program with the adapters among its facts, and the checkpoint with them merged."""
    if not adapters:
        return program, checkpoint
    named = [[adapter.sha256(), adapter.scale] for adapter in adapters]
    program = replace(program, facts={**program.facts, FACT: named})
    return program, WithAdapters(checkpoint, adapters, family, config)


class Change(NamedTuple):
    """A change of a tensor by an adapter, whose rows are `rows` in the tensor's order."""

    adapter: Adapter
    change: LowRank | str
    rows: Rows | None


class WithAdapters:
    """A checkpoint with adapters merged into it, in their order; tensors are merged when read.

    Raises
    ------
    FormatError : an adapter is of another model: it changes what this one has not, or other shapes.
    UnsupportedError : a GGUF adapter for a folder, or a PEFT adapter for a GGUF file of a family
        whose files differ (`adapter_rows`).
    """

    def __init__(
        self,
        base: OpenCheckpoint,
        adapters: Sequence[Adapter],
        family: ModuleType,
        config: BaseConfig,
    ) -> None:
        self.base, self._adapters = base, tuple(adapters)
        self._family, self._config, names = family, config, names_of(family, config)
        self._head, self._table = (names.in_file(x, config.source) for x in (HEAD, TABLE))
        self._is_tied = config.tie_word_embeddings or self._head not in base
        for problem in untied(base, config, self._table):
            raise FormatError(problem, where=location_of(base))
        self.changes: dict[str, list[Change]] = {}
        for adapter in self._adapters:
            self.add(adapter)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.base, name)

    def __contains__(self, name: object) -> bool:
        return name in self.base and not self._is_hidden(name)

    @property
    def tensor_names(self) -> Iterator[str]:
        """Names of the checkpoint's tensors."""
        return (name for name in self.base.tensor_names if not self._is_hidden(name))

    @property
    def merged(self) -> tuple[str, ...]:
        """Names of the changed tensors."""
        return tuple(self.changes)

    def _is_hidden(self, name: object) -> bool:
        """Return whether a tensor is the copy of a table that has been changed."""
        return self._is_tied and name == self._head and self._table in self.changes

    def rows_of(self, adapter: Adapter) -> Mapping[str, Rows]:
        """Return the weights whose rows the checkpoint has in another order than the adapter."""
        where, source = str(adapter.path), self._config.source
        if adapter.kind == source:
            return {}
        if source != "gguf":
            what = "is a GGUF adapter, and the model is a Hugging Face folder"
            hint = "take the model, or the adapter, in the other's form"
            raise UnsupportedError(what, where=where, hint=hint)
        return turned_rows(self._family, self._config, where)

    def add(self, adapter: Adapter) -> None:
        """Note what an adapter changes, by the checkpoint's names."""
        where, rows = str(adapter.path), self.rows_of(adapter)
        if adapter.vectors:
            hint = "name it when a text is generated: --adapter NAME=PATH"
            raise UnsupportedError("is an IA³ adapter, which is not merged", where=where, hint=hint)
        if adapter.stacks:
            hint = "name it when a text is generated: --adapter NAME=PATH"
            what = "changes stacked experts (target_parameters), which is not merged"
            raise UnsupportedError(what, where=where, hint=hint)
        changes: Iterator[tuple[str, LowRank | str]]
        changes = chain(adapter.whole.items(), adapter.changes.items())  # a change is of the whole
        for name, change in changes:
            canonical, found = self.found(name, adapter)
            check_shape(adapter, change, found, tuple(self.base.tensor(found).shape))
            made = Change(adapter, change, rows.get(canonical))
            whole = isinstance(change, str) and adapter.kind != self._config.source
            if whole and (made.rows is not None or len(adapter.shape(str(change))) != 2):
                what = f"holds {name} whole, which GGUF files may hold in another form"
                raise UnsupportedError(what, where=where)
            self.changes.setdefault(found, []).append(made)

    def found(self, name: str, adapter: Adapter) -> tuple[str, str]:
        """Return a tensor that an adapter names, and the checkpoint's name of it.

        Raises
        ------
        FormatError : there is none.
        """
        canonical, found = self._find(name, adapter.kind)
        if found is None:
            what = f"changes {name}, which the model {location_of(self.base)} does not have"
            raise FormatError(what, where=str(adapter.path))
        return canonical, found

    def _find(self, name: str, kind: str) -> tuple[str, str | None]:
        """Return a tensor that an adapter names, and the checkpoint's name of it; None if there is
        none.
        """
        named = [name]
        for form in NAME_PREFIXES:
            named += [
                mine + name.removeprefix(theirs)
                for theirs, mine in form.items()
                if name.startswith(theirs)
            ]
        forms = names_of(self._family, self._config).forms if kind == "huggingface" else ()
        named += [write(one) for write in forms for one in tuple(named)]
        for candidate in named:
            own: str | None = candidate
            if kind != self._config.source:
                own = names_of(self._family, self._config).known(candidate, self._config.source)
            if own == self._head and self._is_tied:
                return candidate, self._table
            if own in self.base:
                return candidate, own
        return name, None

    def tensor(self, name: str) -> Any:
        """Return a tensor; a changed one is computed when its rows are read."""
        base, changes = self.base.tensor(name), self.changes.get(name)
        if not changes:
            return base
        factors: list[Factors] = []
        for adapter, change, rows in changes:
            if isinstance(change, str):
                stored, raw = adapter.stored(change)
                base, factors = WholeTensor(name, tuple(base.shape), stored, raw), []
            else:
                factors.append(Factors(adapter, change, tuple(base.shape), rows))
        if not factors:
            return base
        return PackedTensor(name, tuple(base.shape), "F32", _maker(base, factors))


def check_shape(adapter: Adapter, change: LowRank | str, name: str, shape: tuple[int, ...]) -> None:
    """Check that a change fits a tensor of this shape."""
    if isinstance(change, str):
        made = adapter.shape(change)
    else:
        a, b = adapter.shape(change.a), adapter.shape(change.b)
        if change.is_table:
            a, b = (b[::-1], a[::-1]) if adapter.kind == "huggingface" else (b[::-1], a)
        made = (*a[:-2], b[-2], a[-1])
        if a[:-2] != b[:-2] or a[-2] != b[-1]:
            made = ()
        if change.magnitude and prod(adapter.shape(change.magnitude)) != prod(shape[:-1]):
            made = ()
    if made != shape:
        what = f"changes {name} {list(shape)} by a tensor of the shape {list(made)}"
        raise FormatError(what, where=str(adapter.path), hint="it was made for another model")


def doubles(adapter: Adapter, name: str) -> Doubles:
    """Return a tensor of an adapter in its own shape; FormatError if a number is not finite."""
    (kind, raw), shape = adapter.stored(name), adapter.shape(name)
    size = (prod(shape[:-1]), shape[-1])
    weight = Weight.from_bytes(LAYOUTS[kind], raw.reshape(-1), size)
    return floats(weight, f"{adapter.path}: {name}").astype(np.float64).reshape(shape)


class Factors:
    """Both factors of a change, split into integers: read once, for all rows of a matrix."""

    def __init__(
        self, adapter: Adapter, change: LowRank, shape: tuple[int, ...], rows: Rows | None
    ) -> None:
        a, b = doubles(adapter, change.a), doubles(adapter, change.b)
        if change.is_table:
            a, b = b.T, (a.T if adapter.kind == "huggingface" else a)
        self.a, self.b = (x.reshape(-1, *x.shape[-2:]) for x in (a, b))
        self.scale = change.scale * adapter.scale
        self.height = shape[-2]
        lengths = change.magnitude and doubles(adapter, change.magnitude).reshape(-1, 1)
        self.magnitude: Doubles | None = lengths if isinstance(lengths, np.ndarray) else None
        if rows is not None:
            self.b = self.b[:, rows]
            self.magnitude = None if self.magnitude is None else self.magnitude[rows]

    def rows(self, start: int, stop: int) -> Doubles:
        """Return rows of scale·B·A; matrices of a stack lie one below the other."""
        found = []
        while start < stop:
            index, row = divmod(start, self.height)
            count = min(stop - start, self.height - row)
            part = self.b[index, row : row + count]
            found.append(exact_product(part, self.a[index]) * self.scale)
            start += count
        return np.concatenate(found)

    def applied(self, values: Doubles, original: Doubles, start: int) -> Doubles:
        """Return rows of a matrix with the change; DoRA's lengths are of the original's rows with
        it, whatever has been merged before.
        """
        change = self.rows(start, start + len(values))
        if self.magnitude is None:
            return values + change
        alone = original + change
        factor = self.magnitude[start : start + len(values)] / np.sqrt(row_sums(alone * alone))
        return (values + change) * factor


def _maker(base: Any, factors: Sequence[Factors]) -> Any:
    """Return the function that makes rows of a changed matrix, as bytes of float32."""
    columns, height = base.shape[-1], prod(base.shape[:-1])
    step = max(1, _SLICE_ELEMENTS // columns)

    def some(start: int, stop: int) -> npt.NDArray[np.uint8]:
        values = original = _values(base, start, stop, height)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            for one in factors:
                values = one.applied(values, original, start)
            return np.ascontiguousarray(values, "<f4").view(np.uint8)  # checked when converted

    def make(start: int, stop: int) -> npt.NDArray[np.uint8]:
        made = np.empty((stop - start, 4 * columns), np.uint8)
        for first in range(start, stop, step):
            last = min(first + step, stop)
            made[first - start : last - start] = some(first, last)
        return made

    return make


def _values(base: Any, start: int, stop: int, height: int) -> Doubles:
    """Return rows of the model's own matrix; a quantised one is dequantised."""
    weight = raw_weight(base, (height, base.shape[-1])).rows(start, stop)
    return embedding_rows(weight, np.arange(stop - start), name=base.name).astype(np.float64)
