"""Limits of keys: requests and tokens a minute, and requests at once."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cortiq.serve.api_keys import ApiKey
from cortiq.serve.errors import ApiError

MINUTE = 60.0
ONE = 1 - 1e-6
"""Least allowance for a request: who waited as long as told has it, however it was rounded."""
COUNTED = ("prompt_tokens", "new_tokens")
"""Facts of a request that count as its tokens."""


@dataclass
class Bucket:
    """An allowance that fills up within a minute; what is spent beyond it has to fill up, too.

    Attributes
    ----------
    left : what may be spent; negative after more was.
    """

    limit: int
    left: float
    at: float

    def refill(self, now: float) -> None:
        """Add what has come since the last call."""
        self.left = min(self.limit, self.left + (now - self.at) * self.limit / MINUTE)
        self.at = now

    def seconds_until(self, wanted: float) -> float:
        """Return the seconds until so much may be spent."""
        return max(0.0, (wanted - self.left) * MINUTE / self.limit)


@dataclass
class KeyUsage:
    """Used part of a key's limits."""

    running: int = 0
    buckets: dict[str, Bucket] = field(default_factory=dict)

    def bucket(self, name: str, limit: int, now: float) -> Bucket:
        """Return an allowance, full at first, or after its limit has changed."""
        found = self.buckets.get(name)
        if found is None or found.limit != limit:
            found = self.buckets[name] = Bucket(limit, limit, now)
        found.refill(now)
        return found


class KeyLimits:
    """Admits requests by the limits of their keys."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._usage: dict[str, KeyUsage] = {}

    def enter(self, key: ApiKey) -> Callable[[Mapping[str, Any]], None]:
        """Admit a request; return what to call with its facts when it has ended.

        Raises
        ------
        ApiError : 429: the key has used its limits; `retry-after` says for how long.
        """
        usage = self._usage.setdefault(key.name, KeyUsage())
        if key.concurrent is not None and usage.running >= key.concurrent:
            message = f"This key has {usage.running} requests running, as many as it may."
            raise ApiError(429, message, "concurrency_limit", retry_after=1)
        now = self._clock()
        if key.tokens_per_minute is not None:
            tokens = usage.bucket("tokens", key.tokens_per_minute, now)
            if tokens.left <= 0:
                raise used_up("tokens", key.tokens_per_minute, tokens.seconds_until(1))
        if key.requests_per_minute is not None:
            requests = usage.bucket("requests", key.requests_per_minute, now)
            if requests.left < ONE:
                raise used_up("requests", key.requests_per_minute, requests.seconds_until(1))
            requests.left -= 1
        usage.running += 1

        def leave(facts: Mapping[str, Any]) -> None:
            usage.running -= 1
            if key.tokens_per_minute is not None:
                tokens = usage.bucket("tokens", key.tokens_per_minute, self._clock())
                tokens.left -= tokens_of(facts)

        return leave


def tokens_of(facts: Mapping[str, Any]) -> int:
    """Return the tokens that a request counts as."""
    return sum(facts.get(name, 0) for name in COUNTED)


def used_up(what: str, limit: int, seconds: float) -> ApiError:
    """Return the error (429) of a limit that is used up."""
    wait = max(1, math.ceil(seconds))
    message = f"This key may use {limit} {what} a minute: try again in {wait} s."
    return ApiError(429, message, "rate_limit_exceeded", retry_after=wait)
