"""One batch on its way through a plan, in tensors on a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cortiq.backend import Batch
from cortiq.backend.executable import Accepted
from cortiq.backend.plan import Plan
from cortiq.backend.stored import StoredState
from cortiq.backend.walk import Walk
from cortiq_torch.arithmetic import Rows, snap


class Run(Walk[StoredState]):
    """A batch on one device; rows are answered on the host."""

    def __init__(
        self, plan: Plan, batch: Batch, accepted: Sequence[Accepted[StoredState]], device: str
    ) -> None:
        self.device = device
        super().__init__(plan, batch, accepted)

    def array(self, host: np.ndarray) -> Tensor:
        """A copy on the device."""
        return torch.tensor(host, device=self.device)

    def host(self, array: Tensor) -> Any:
        """The values, which wait for what is under way."""
        return array.cpu().numpy()

    def quantised(self, q: np.ndarray, e: np.ndarray) -> Rows:
        """Rows whose integers are held as float64."""
        return Rows(self.array(q).double(), self.array(e))

    def snap(self, x: Tensor, faults: Tensor) -> Tensor:
        """As every kernel ends."""
        return snap(x, faults)
