"""Token ids of a prompt, checked against the vocabulary and the context of a program."""

from __future__ import annotations

import operator
from collections.abc import Iterable

from cortiq.errors import ContextError, RequestError, shown
from cortiq.ir import Program
from cortiq.ir.images import TEXT_IDS
from cortiq.ir.purpose import Purpose, check_continues, purpose_of


def vocabulary_size(program: Program) -> int:
    """Return the number of token ids that the trunk has logits for."""
    logits = program.trunk.values.get("logits")
    return int(program.facts["vocab_size"]) if logits is None else logits.shape[0]


def known_ids(program: Program) -> int:
    """Return the number of ids that a prompt may have: also of images, where they have no logit."""
    size = vocabulary_size(program)
    return int(program.facts["vocab_size"]) if TEXT_IDS in program.facts else size


def check_prompt(
    ids: Iterable[int],
    program: Program,
    longest: int = 0,
    *,
    encoder: bool = False,
    heard: bool = False,
) -> tuple[int, ...]:
    """Return token ids as a tuple of int.

    Parameters
    ----------
    longest : context the model can be loaded with, for the hint.
    encoder : whether the program may be an encoder, which predicts no tokens.
    heard : whether the rows of what the program hears, if it does, are the caller's concern.

    Raises
    ------
    RequestError : there are none, one is no id of the vocabulary, they exceed the context, or the
        program hears and there is no sound.
    """
    allowed = (Purpose.TEXT, *[Purpose.EMBEDDINGS] * encoder, *[Purpose.SPEECH] * heard)
    if purpose_of(program) not in allowed:
        check_continues(program)
    prompt = tuple(_as_id(token) for token in ids)
    vocabulary = known_ids(program)
    if not prompt:
        raise RequestError("the prompt is empty", hint="give at least one character or token id")
    for position, token in enumerate(prompt):
        if not 0 <= token < vocabulary:
            raise RequestError(
                f"token id {shown(token)} is outside the vocabulary of {vocabulary}",
                where=f"prompt, position {position}",
            )
    if len(prompt) > program.context:
        raise ContextError(
            f"the prompt has {len(prompt)} tokens, the context is {program.context}",
            hint=shorten_hint(program, longest),
        )
    return prompt


def shorten_hint(program: Program, longest: int) -> str:
    """Return the hint for a prompt that is too long."""
    if longest <= program.context:
        return "shorten the prompt: it is the longest context of this model"
    return f"shorten the prompt, or load the model with a longer context (at most {longest})"


def _as_id(token: int) -> int:
    try:
        if not isinstance(token, bool):
            return operator.index(token)
    except TypeError:
        pass
    hint = "generate_many takes several texts" if isinstance(token, str) else ""
    raise RequestError(f"{shown(token)} is not a token id", where="prompt", hint=hint)


def id_list(ids: Iterable[int]) -> list[int]:
    """Return ids as a list; refuse bytes, which are an undecoded text."""
    if isinstance(ids, (bytes, bytearray)) or not isinstance(ids, Iterable):
        raise RequestError(f"a text or token ids are wanted, not {shown(ids)}", where="prompt")
    try:
        return list(ids)
    except TypeError:  # an array of no dimensions says that it is iterable
        raise RequestError(f"{shown(ids)} are no token ids", where="prompt") from None
