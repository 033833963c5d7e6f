"""Default cache points of a prompt, for states that cannot be rewound to any length."""

from __future__ import annotations

from dataclasses import replace

from cortiq.engine.cache_roles import CachePoint, CacheRole
from cortiq.engine.prefixes import PrefixCache
from cortiq.engine.request import Request
from cortiq.tokenizer.tokenizer import Tokenizer


def default_cache_points(ids: tuple[int, ...], tokenizer: Tokenizer) -> tuple[CachePoint, ...]:
    """Return the end of the system prompt and the start of the answer, found by control tokens.

    The next turn renders everything up to the last control token of this prompt in the same way:
    the header of an answer, or what opens its thinking, which later turns leave out. Every
    conversation with this system prompt begins alike up to the second token that opens a message.
    """
    if tokenizer.absent:
        return ()
    positions = [i for i, token in enumerate(ids) if tokenizer.is_special(token) and i]
    opens = [i for i in positions if ids[i] == ids[positions[-1]]] if positions else []
    system = [CachePoint(opens[0], CacheRole.SYSTEM)] if len(opens) > 1 else []
    return (*system, CachePoint(positions[-1], CacheRole.TURN)) if positions else ()


def with_cache_points(
    request: Request, prefixes: PrefixCache | None, tokenizer: Tokenizer
) -> Request:
    """Return the request with default cache points, if they are useful and it has none."""
    if prefixes is None or prefixes.rewinds_freely or request.cache_points:
        return request
    return replace(request, cache_points=default_cache_points(request.prompt, tokenizer))
