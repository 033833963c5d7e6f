"""One walk for three array libraries: which rows a value has, and whom its faults concern."""

from __future__ import annotations

from contextlib import closing
from importlib import import_module

import numpy as np
import pytest

from cortiq.backend import Argmax, Batch, CompileOptions, Digest, Named, Row, Status
from cortiq_conformance import models

BACKENDS = {"cortiq_reference": "Reference", "cortiq_torch": "Torch", "cortiq_mlx": "Mlx"}
PROMPT = [5, 9, 2, 7]


@pytest.fixture(params=BACKENDS, scope="module")
def executable(request):
    pytest.importorskip(
        {"cortiq_mlx": "mlx.core", "cortiq_torch": "torch"}.get(request.param, "numpy")
    )
    backend = getattr(
        import_module(f"{request.param}.backend"), f"{BACKENDS[request.param]}Backend"
    )
    model = models.load("tiny-llama")
    options = CompileOptions(threads=1, device="cpu")
    with closing(backend().compile(model.program, model.weights, options)) as compiled:
        yield compiled


def rows(state, wants, inputs=None):
    """A prompt; `wants` and `inputs` by position."""
    given = inputs or {}
    return [
        Row(state, at, token, wants.get(at, ()), given.get(at, {}))
        for at, token in enumerate(PROMPT)
    ]


def brought(executable, *asked):
    """Return the results of sequences that are fed together; None for one that failed."""
    states = [executable.open(len(PROMPT)) for _ in asked]
    batch = [row for state, how in zip(states, asked, strict=True) for row in rows(state, *how)]
    result = executable.forward(Batch(batch)).result()
    found = []
    for number, state in enumerate(states):
        status = result.outcomes[state].status
        mine = result.rows[number * len(PROMPT) : (number + 1) * len(PROMPT)]
        found.append(list(mine) if status is Status.COMPLETED else None)
        state.release()
    return found


def test_rows_that_want_different_values_get_what_each_gets_alone(executable):
    asked = [
        ({1: (Digest(),), 3: (Digest("hidden"), Argmax())},),
        ({0: (Digest("layers.0.out"),)},),
        ({2: (Digest("hidden"),), 3: (Digest(), Digest("layers.1.out"))},),
        ({at: (Argmax(), Digest("hidden")) for at in range(4)},),
    ]
    alone = [brought(executable, how)[0] for how in asked]
    assert brought(executable, *asked) == alone
    assert [[set(row) for row in mine] for mine in alone] == [
        [set(how[0].get(at, ())) for at in range(4)] for how in asked
    ]


def test_a_value_that_a_row_did_not_want_cannot_fail_it(executable):
    width = executable.program.trunk.values["hidden"].shape
    large = {"hidden": np.full(width, 1.5 * 2.0**49, np.float32)}
    quiet = ({at: (Digest("hidden"),) for at in range(4)}, {2: large})
    asking = ({3: (Digest(),)},)
    alone = brought(executable, asking)[0]
    unasked, other = brought(executable, quiet, asking)
    assert unasked is not None and other == alone
    wanting = ({**quiet[0], 2: (Digest(),)}, {2: large})
    assert brought(executable, wanting, asking) == [None, alone]


def test_a_row_replaces_its_own_value_only(executable):
    plain = brought(executable, ({at: (Named("hidden"), Digest()) for at in range(4)},))[0]
    mine = plain[1][Named("hidden")]
    swapped = brought(
        executable, ({at: (Named("hidden"), Digest()) for at in range(4)}, {3: {"hidden": mine}})
    )[0]
    assert [row[Digest()] for row in swapped] == [plain[at][Digest()] for at in (0, 1, 2, 1)]
    np.testing.assert_array_equal(swapped[3][Named("hidden")], mine)
