"""Where in a prompt a copy of the state is worth keeping, where states cannot go back at will."""

from __future__ import annotations

from dataclasses import replace

from cortiq.engine.cache_roles import CachePoint, CacheRole
from cortiq.engine.prefixes import PrefixCache
from cortiq.engine.request import Request
from cortiq.tokenizer.tokenizer import Tokenizer


def default_cache_points(ids: tuple[int, ...], tokenizer: Tokenizer) -> tuple[CachePoint, ...]:
    """The end of the system prompt, and where the answer begins, as control tokens show them.

    The next turn renders everything up to the last control token of this prompt in the same way:
    the header of an answer, or what opens its thinking, which later turns leave out. Every
    conversation with this system prompt begins alike up to the second token that opens a message.
    """
    if tokenizer.absent:
        return ()
    places = [i for i, token in enumerate(ids) if tokenizer.is_special(token) and i]
    opens = [i for i in places if ids[i] == ids[places[-1]]] if places else []
    system = [CachePoint(opens[0], CacheRole.SYSTEM)] if len(opens) > 1 else []
    return (*system, CachePoint(places[-1], CacheRole.TURN)) if places else ()


def with_cache_points(
    request: Request, prefixes: PrefixCache | None, tokenizer: Tokenizer
) -> Request:
    """The request with the usual marks, if they are of use and it has none of its own."""
    if prefixes is None or prefixes.free or request.marks:
        return request
    return replace(request, marks=default_cache_points(request.prompt, tokenizer))
