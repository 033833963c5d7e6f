"""Build a family's program for a checkpoint and a context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType

from cortiq.errors import RequestError
from cortiq.ir import Program
from cortiq.ir.images import IMAGES, ImageRows
from cortiq.models.config import BaseConfig
from cortiq.models.open_checkpoint import OpenCheckpoint
from cortiq.models.registry import said_of

IGNORED_KEYS = "ignored_config"
"""Fact of a program: unknown keys of its configuration that were left out by request."""


def build_program(
    family: ModuleType,
    config: BaseConfig,
    context: int | None,
    checkpoint: OpenCheckpoint,
    images: ImageRows | None = None,
    ignored: Sequence[str] = (),
) -> Program:
    """Build the family's program; of a family that sees, with what rows of images supply.

    Parameters
    ----------
    ignored : unknown keys of the configuration that were left out by request: a fact of it.
    """
    declared = _context(context, config)
    with said_of(checkpoint):
        if images is None:
            return with_ignored(family.build(config, declared), ignored)
        given = (images,) if images.supplies else ()
        program: Program = family.build(config, declared, *given)
        facts = {IMAGES: images, **program.facts}  # a family may need more of rows
        return with_ignored(replace(program, facts=facts), ignored)


def with_ignored(program: Program, keys: Sequence[str]) -> Program:
    """Return the program with the keys that were left out among its facts, if there are any."""
    if not keys:
        return program
    return replace(program, facts={**program.facts, IGNORED_KEYS: sorted(keys)})


def _context(context: int | None, config: BaseConfig) -> int:
    longest = config.max_position_embeddings
    if context is None:
        return longest
    if not 0 < context <= longest:
        hint = f"the model was made for 1 to {longest} tokens"
        raise RequestError(f"a context of {context} tokens", where="context", hint=hint)
    return context
