"""A table whose rows are looked up outside a program's weights, by the ids of a batch."""

from __future__ import annotations

from typing import Any

import torch

from cortiq.numerics.layouts import Weight
from cortiq_triton import kernels, products


class DeviceTable:
    """Rows of a table on the device that the ids are on; see `TakesKernels.table_function`."""

    def __init__(self, weight: Weight, name: str) -> None:
        self._weight: Weight | None = weight
        self._name = name
        self._packed: Any = None

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows, NaN where one is at fault."""
        faults = torch.zeros(len(ids), dtype=torch.int32, device=ids.device)
        rows = products.look_up(self._there(str(ids.device)), ids, faults)
        return rows.masked_fill(faults[:, None] != 0, float("nan"))

    def _there(self, device: str) -> Any:
        """Return the packed table, uploaded once."""
        if self._weight is not None:
            self._packed, self._weight = kernels.pack(self._weight, self._name, device), None
        return self._packed
