"""Every option of every layer: the contract is close to the same layer in float64."""

from __future__ import annotations

import numpy as np
import pytest

from cortiq.ir.layers import KeyIndexer, WindowIndexer
from cortiq_conformance.case import Scenario
from cortiq_conformance.case_data import CaseData
from cortiq_conformance.layer_options import KIMI, NET, OPTIONS, SPACE
from cortiq_conformance.layers import layer_probe
from cortiq_reference.ideal import evaluate

ROWS, TOLERANCE = 40, 2e-3
LISTS = KeyIndexer | WindowIndexer
LAYERS = [op for op in (*OPTIONS, NET, KIMI, SPACE) if not isinstance(op, LISTS)]
"""All but those whose output is a list of positions."""


@pytest.mark.parametrize("layout", ["f32", "w16"])
@pytest.mark.parametrize("op", LAYERS, ids=lambda op: op.describe()[:70])
def test_the_contract_is_close_to_float64(op, layout):
    source = CaseData(f"{op.describe()} {layout}")
    probe = layer_probe(op, layout, source)
    feed = probe.feed(source, ROWS)
    for name in {"keys", "blocks"} & feed.inputs.keys():  # every row sees one that it lists
        feed.inputs[name][..., 0] = 0
    contract = Scenario(probe.program, probe.weights, [feed]).expected()["y"]
    given = {name: np.asarray(rows, rows.dtype) for name, rows in feed.inputs.items()}
    ideal = evaluate(probe.program, probe.weights, feed.tokens, ["y"], inputs=given)["y"]
    contract, ideal = (y.reshape(ROWS, -1) for y in (contract, ideal))
    errors = np.linalg.norm(contract - ideal, axis=1) / np.linalg.norm(ideal, axis=1)
    assert errors.max() < TOLERANCE
    assert np.ptp(ideal, axis=0).max() > 0.01
