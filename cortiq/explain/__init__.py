"""A look inside a model: rows of its layers, activations, experts, and two runs compared."""

from cortiq.explain.calibrate import Calibrated, calibrate, read_calibration
from cortiq.explain.compare import Parity, compare
from cortiq.explain.facts import Explanation, explain
from cortiq.explain.observed import ObservedModel, open_observed
from cortiq.explain.probes import hidden_rows, mean_row

__all__ = [
    "Calibrated",
    "Explanation",
    "Parity",
    "ObservedModel",
    "calibrate",
    "compare",
    "explain",
    "hidden_rows",
    "mean_row",
    "open_observed",
    "read_calibration",
]
