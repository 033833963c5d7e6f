"""Recipes: which format each matrix of a model gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from cortiq.errors import RequestError
from cortiq.models.weight_rules import FINER
from cortiq.numerics.weights import TARGETS

KEEP = "keep"
"""The format that leaves a tensor in the file's codes."""
OWN_FORMATS = (*TARGETS, KEEP)
"""Formats of single tensors in a folder of our own."""
RECIPES: Mapping[str, tuple[str, str]] = {
    **{target: (target, FINER.get(target, target)) for target in TARGETS},
    "w4-all": ("w4", "w4"),
    "w4-keep": ("w4", KEEP),
    KEEP: (KEEP, KEEP),
}
"""Formats by recipe: of most matrices; of tables, heads and the scores that choose experts."""


@dataclass(frozen=True)
class Recipe:
    """A recipe and the patterns that go before it.

    Attributes
    ----------
    name : a key of the recipes. formats : of most matrices, and of delicate ones.
    patterns : pairs of a pattern of tensors' names and a format; the last that fits counts.
    used : patterns that fitted a tensor.
    """

    name: str
    formats: tuple[str, str]
    patterns: Sequence[tuple[str, str]] = ()
    used: set[str] = field(default_factory=set, compare=False)

    def format_of(self, names: Sequence[str], is_delicate: bool) -> tuple[str, bool]:
        """Return a tensor's format, and whether a pattern chose it.

        Parameters
        ----------
        names : what it is called: in the file, and by canonical names of the weights it holds.
        """
        chosen, by_pattern = self.formats[int(is_delicate)], False
        for pattern, target in self.patterns:
            if any(fnmatchcase(name, pattern) for name in names):
                chosen, by_pattern = target, True
                self.used.add(pattern)
        return chosen, by_pattern

    def check_used(self) -> None:
        """Raise RequestError for a pattern that no matrix fitted."""
        idle = [pattern for pattern, _ in self.patterns if pattern not in self.used]
        if idle:
            hint = (
                "`cortiq inspect --full MODEL` lists the names of matrices; * stands for any text"
            )
            raise RequestError(f"no matrix is called {idle[0]}", where="tensor", hint=hint)

    @property
    def rule(self) -> dict[str, object]:
        """The recipe as the converted file describes it."""
        return {"format": self.name, "tensors": [list(pair) for pair in self.patterns]}


def read_recipe(
    name: str,
    patterns: Sequence[str],
    recipes: Mapping[str, tuple[str, str]] = RECIPES,
    formats: Sequence[str] = OWN_FORMATS,
) -> Recipe:
    """Return the recipe of a name, with patterns written PATTERN=FORMAT.

    Raises
    ------
    RequestError : there is no such recipe or format, or a pattern has no format.
    """
    if name not in recipes:
        what = f"no recipe is called {name!r}"
        raise RequestError(what, where="format", hint=f"one of {', '.join(recipes)}")
    pairs = []
    for text in patterns:
        pattern, _, target = text.rpartition("=")
        if not pattern or target not in formats:
            hint = f"write PATTERN=FORMAT, with a format out of {', '.join(formats)}"
            raise RequestError(f"is {text!r}", where="tensor", hint=hint)
        pairs.append((pattern, target))
    return Recipe(name, recipes[name], tuple(pairs))
