"""The contract's logits on the reference against the same graph in float64, for every family."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")

import numpy as np
from checkpoints import CASES, write

from cortiq.backend import Batch, CompileOptions, Named, Row, Status
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.models import load_program
from cortiq.models.synthetic import CONFIGS, FIXTURES, open_synthetic
from cortiq_reference.backend import ReferenceBackend
from cortiq_reference.ideal import evaluate

TOLERANCE = 2e-3
"""Largest ‖contract − float64‖/‖float64‖ of the logits at any position."""
LOGITS, HIDDEN = Named("logits"), Named("hidden")
TINY = [name for name in [*CONFIGS, *FIXTURES] if name.startswith("tiny")]


def contract_values(loaded, tokens, want, entry="trunk", inputs=None):
    """The named value at every position, from one prefill on the reference."""
    executable = ReferenceBackend().compile(
        loaded.program, loaded.weights, CompileOptions(threads=1)
    )
    state = executable.open(len(tokens))
    rows = [
        Row(state, i, t, (want,), {} if inputs is None else {"hidden": inputs[i]})
        for i, t in enumerate(tokens)
    ]
    result = executable.forward(Batch(rows, entry)).result()
    assert result.outcomes[state].status is Status.COMPLETED
    return np.stack([row[want] for row in result.rows])


def largest_error(contract, ideal):
    norms = np.linalg.norm(contract - ideal, axis=-1) / np.linalg.norm(ideal, axis=-1)
    return float(norms.max())


@pytest.mark.parametrize("weight_format", ["f32", "w16"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_contract_is_close_to_float64(case, weight_format, tmp_path):
    model = write(case, tmp_path)
    checkpoint = open_checkpoint(model.folder)
    loaded = load_program(checkpoint, context=case.context, weight_format=weight_format)
    ideal = evaluate(loaded.program, loaded.weights, model.tokens, ["logits"])["logits"]
    contract = contract_values(loaded, model.tokens, LOGITS)
    assert 0 < largest_error(contract, ideal) < TOLERANCE
    # The weights' own rounding, against the float32 weights that transformers has.
    assert largest_error(contract, model.logits) < 2 * TOLERANCE


@pytest.mark.parametrize("weight_format", ["f32", "w16", "w8"])
@pytest.mark.parametrize("name", TINY)
def test_contract_is_close_to_float64_on_synthetic_models(name, weight_format):
    loaded = load_program(open_synthetic(f"synthetic:{name}?seed=11&format={weight_format}"))
    tokens = [(7 * i * i + 3 * i) % 60 for i in range(150)]
    ideal = evaluate(loaded.program, loaded.weights, tokens, ["logits", "hidden"])
    contract = contract_values(loaded, tokens, LOGITS)
    assert 0 < largest_error(contract, ideal["logits"]) < TOLERANCE
    if "mtp" not in loaded.program.graphs:
        return
    hidden = contract_values(loaded, tokens, HIDDEN)
    draft = contract_values(loaded, tokens, LOGITS, "mtp", hidden)
    exact = evaluate(
        loaded.program, loaded.weights, tokens, ["logits"], "mtp", {"hidden": ideal["hidden"]}
    )
    assert 0 < largest_error(draft, exact["logits"]) < TOLERANCE
