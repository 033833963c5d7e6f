"""Where sequences keep rows: pages of 64 positions for all slots, a block of what does not grow.

A page's bytes follow from the program; kernels reach pages through tables of addresses, so
that memory can grow without any launch changing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np
import torch

from cortiq.backend import KVPlanes
from cortiq.ir import KVRows, Program, Recurrent, Ring, Slot
from cortiq.numerics.contract import TILE

ALIGNMENT = 16
RING_ROWS = 64
"""Rows that a ring can go back, besides those that its convolution reads."""
POISON = 0x7B
"""Byte that fills unused memory in tests: large codes, exponents and floats."""


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def page_bytes(slot: KVRows) -> int:
    """Bytes of a slot in a page: planes of keys [heads, 64, dim] and of values [heads, dim, 64],
    then exponents [heads, 64] of both.
    """
    return _aligned(TILE * slot.heads * (2 * (slot.key_dim + slot.value_dim) + 2))


def ring_rows(slot: Ring) -> int:
    """Rows that a ring holds."""
    return slot.length + RING_ROWS


def fixed_bytes(slot: Slot) -> int:
    """Bytes of a slot in a sequence's fixed block."""
    if isinstance(slot, Ring):
        return _aligned(ring_rows(slot) * slot.width * 4)
    return _aligned(prod(slot.shape) * 4) if isinstance(slot, Recurrent) else 0


@dataclass(frozen=True)
class Layout:
    """Offsets of all slots, in a page or in the fixed block; sizes of both.

    `kept` is the size of the part of the fixed block that recurrent states take.
    """

    offsets: Mapping[str, int]
    page: int
    fixed: int

    @staticmethod
    def of(program: Program) -> Layout:
        """The layout of a program's slots."""
        offsets, page, fixed = {}, 0, 0
        for name, slot in program.slots.items():
            if isinstance(slot, KVRows):
                offsets[name] = page
                page += page_bytes(slot)
            else:
                offsets[name] = fixed
                fixed += fixed_bytes(slot)
        return Layout(offsets, page, fixed)


@dataclass
class Page:
    """A page's memory and how many sequences hold it."""

    memory: torch.Tensor
    holders: int = 1

    @property
    def address(self) -> int:
        """Where it lies."""
        return self.memory.data_ptr()


@dataclass
class Pool:
    """All pages of an executable; freed ones are used again before memory is asked for.

    Attributes
    ----------
    spare : pages nobody holds. count : pages that exist. most : pages that may, or None.
    """

    size: int
    device: str
    poison: bool = False
    spare: list[torch.Tensor] = field(default_factory=list)
    held: int = 0

    def take(self, count: int) -> list[Page]:
        """So many new pages.

        Raises
        ------
        torch.OutOfMemoryError : the device has no room; nothing was taken.
        """
        missing = count - len(self.spare)
        fresh = [self._fresh() for _ in range(max(0, missing))]
        memory = fresh + [self.spare.pop() for _ in range(count - len(fresh))]
        self.held += count
        return [Page(part) for part in memory]

    def _fresh(self) -> torch.Tensor:
        memory = torch.empty(self.size, dtype=torch.int8, device=self.device)
        return memory.fill_(POISON) if self.poison else memory

    def drop(self, page: Page) -> None:
        """A holder less."""
        page.holders -= 1
        if page.holders == 0:
            self.held -= 1
            self.spare.append(page.memory)

    def shrink(self) -> None:
        """Give spare memory back to the device."""
        self.spare.clear()


@dataclass(frozen=True)
class SlotView:
    """A slot's arrays in one page, as tensors."""

    key_planes: torch.Tensor
    value_planes: torch.Tensor
    exponents: torch.Tensor

    @staticmethod
    def of(page: torch.Tensor, offset: int, slot: KVRows) -> SlotView:
        """Keys [2, heads, 64, dim], values [2, heads, dim, 64], exponents [2, heads, 64]."""
        heads, dk, dv = slot.heads, slot.key_dim, slot.value_dim
        keys, values = 2 * heads * TILE * dk, 2 * heads * TILE * dv
        at = page[offset : offset + page_bytes(slot)]
        return SlotView(
            at[:keys].view(2, heads, TILE, dk),
            at[keys : keys + values].view(2, heads, dv, TILE),
            at[keys + values : keys + values + 2 * heads * TILE].view(2, heads, TILE),
        )


def export_rows(pages: list[Page], offset: int, slot: KVRows, base: int, length: int) -> KVPlanes:
    """Rows `base` to `length` − 1 of a slot as canonical planes."""
    keys, values, exponents = [], [], []
    for page in pages:
        view = SlotView.of(page.memory.cpu(), offset, slot)
        keys.append(view.key_planes.permute(0, 2, 1, 3))
        values.append(view.value_planes.permute(0, 3, 1, 2))
        exponents.append(view.exponents.permute(0, 2, 1))
    if not pages:
        return _no_rows(slot)
    k, v, e = (torch.cat(part, dim=1)[:, base:length].numpy() for part in (keys, values, exponents))
    parts = (k[0], k[1], e[0], v[0], v[1], e[1])
    return KVPlanes(*(np.ascontiguousarray(part) for part in parts))


def _no_rows(slot: KVRows) -> KVPlanes:
    keys, values = (0, slot.heads, slot.key_dim), (0, slot.heads, slot.value_dim)
    empty = [np.zeros(shape, np.int8) for shape in (keys, keys, keys[:2], values, values, keys[:2])]
    return KVPlanes(*empty)


def import_rows(pages: list[Page], offset: int, slot: KVRows, rows: KVPlanes, base: int) -> None:
    """Write canonical planes into pages; `base`, a multiple of 64, is their first row."""
    count = len(rows.key_high)
    for number, page in enumerate(pages[base // TILE :]):
        start = number * TILE
        here = min(TILE, count - start)
        if here <= 0:
            break
        cut = slice(start, start + here)
        host = page.memory.cpu() if page.memory.is_cuda else page.memory
        view = SlotView.of(host, offset, slot)
        for plane, (key, value, exponent) in enumerate(
            (
                (rows.key_high, rows.value_high, rows.key_exponent),
                (rows.key_low, rows.value_low, rows.value_exponent),
            )
        ):
            view.key_planes[plane, :, :here] = torch.tensor(key[cut]).permute(1, 0, 2)
            view.value_planes[plane, :, :, :here] = torch.tensor(value[cut]).permute(1, 2, 0)
            view.exponents[plane, :, :here] = torch.tensor(exponent[cut]).permute(1, 0)
        page.memory.copy_(host)
