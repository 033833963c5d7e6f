"""Sampling where the caller names none: the model's recommendation, or a gentle default."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cortiq.formats.known_models import KNOWN_MODELS
from cortiq.formats.recommended import SHAPES, Sampling
from cortiq.options import GenerateOptions, resolve

GENTLE: Sampling = {"temperature": 0.7, "top_p": 0.95}
"""Sampling for models that recommend nothing."""


@dataclass(frozen=True)
class DefaultSampling:
    """The sampling of a model where nothing else is asked for.

    Attributes
    ----------
    values : by the name of the option.
    origin : who says so: the model, its card, the operator, or cortiq.
    """

    values: Sampling
    origin: str

    def options(
        self, given: Mapping[str, Any], environment: Mapping[str, str] = os.environ
    ) -> GenerateOptions:
        """Return the options for given values, the environment's, and these, in that order.

        A temperature of 0 takes the most likely token, and none of these values then counts.

        Raises
        ------
        RequestError : an unknown name, or a value that is not allowed.
        """
        chosen = resolve(GenerateOptions, given, environment, self.values)
        if chosen.temperature > 0:
            return chosen
        return resolve(GenerateOptions, {**given, "temperature": 0.0}, environment)

    def changed(self, values: Mapping[str, Any]) -> DefaultSampling:
        """Return it with the values that an operator sets; None leaves one as it is."""
        given = {name: value for name, value in values.items() if value is not None}
        return DefaultSampling({**self.values, **given}, "the operator") if given else self

    def __str__(self) -> str:
        listed = ", ".join(f"{name} {value:g}" for name, value in self.values.items())
        return f"{listed} ({self.origin})"


CORTIQ_SAMPLING = DefaultSampling(GENTLE, "cortiq")
"""The sampling of a model that recommends nothing."""


def usual_sampling(name: str, recommended: Sampling) -> DefaultSampling:
    """Return the sampling of a model: its files', its known name's, or the gentle default."""
    known = KNOWN_MODELS.get(name)
    if any(option in recommended for option in SHAPES):
        return DefaultSampling(recommended, "the model")
    if known is not None and known.sampling:
        return DefaultSampling({**known.sampling, **recommended}, "the model's card")
    return DefaultSampling({**GENTLE, **recommended}, "cortiq")
