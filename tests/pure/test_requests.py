"""Requests made by hand, for the engine: what `make_request` brings and refuses."""

from __future__ import annotations

import numpy as np
import pytest
from scripted import tiny_program

from cortiq.engine.request import SEED_BITS, id_list, make_request
from cortiq.errors import RequestError
from cortiq.options import GenerateOptions


@pytest.mark.parametrize("details", [{}, {"temperature": 0.8}, {"presence_penalty": 0.5}])
def test_a_request_without_a_seed_has_one_and_tells_it(details):
    options = GenerateOptions(max_tokens=4, **details)
    request = make_request([1], options, tiny_program(), ())
    assert 0 <= request.sampling.seed < 1 << SEED_BITS
    again = GenerateOptions(max_tokens=4, seed=request.sampling.seed, **details)
    assert make_request([1], again, tiny_program(), ()) == request


def test_an_array_of_no_dimensions_is_no_list_of_ids():
    with pytest.raises(RequestError, match="no token ids"):
        id_list(np.array(3))
