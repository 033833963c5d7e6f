"""Keys of clients: one from the options, or several from a file, with names, limits and priorities.

The file is TOML, a table for each key:

    [keys.alice]
    key = "sk-…"                    # or sha256 = "…", its SHA-256 in hex
    requests_per_minute = 60
    tokens_per_minute = 100000      # of prompts and answers
    concurrent = 4
    priority = 10                   # the most that its requests may have
    models = ["smollm2"]            # all of them without this
    admin = true                    # may load and unload models

It is read again when it changes and on SIGHUP; a file with an error changes nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.datastructures import Headers

from cortiq.errors import CortiqError, FormatError, shown
from cortiq.serve.errors import ApiError
from cortiq.serve.logs import LOG
from cortiq.serve.options import ServeOptions

NAME = re.compile(r"[A-Za-z0-9_.@-]{1,64}")
SHA256 = re.compile(r"[0-9a-f]{64}")
PRIORITIES = -100, 100
"""Least and greatest priority of a request."""
LIMITS = ("requests_per_minute", "tokens_per_minute", "concurrent")
FIELDS = ("key", "sha256", *LIMITS, "priority", "models", "admin")
LEAST_KEY, MAX_FILE = 8, 1 << 20
"""Least characters of a key, and most bytes of a file of keys."""
CHECK_SECONDS = 1.0
"""Interval at which the file is looked at."""


@dataclass(frozen=True)
class ApiKey:
    """A key, known by its hash.

    Attributes
    ----------
    name : for logs and metrics; empty for the key of the options.
    requests_per_minute, tokens_per_minute, concurrent : limits; None for none.
    priority : the most that its requests may have, and what they have if they do not say.
    models : names it may use; None for all. admin : whether it may load and unload models.
    """

    digest: bytes
    name: str = ""
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent: int | None = None
    priority: int = 0
    models: frozenset[str] | None = None
    admin: bool = True

    def check_model(self, model: str, *others: str | None) -> None:
        """Raise ApiError (403) if the key may not use this model.

        Parameters
        ----------
        others : names that allow it as well: the model's without an adapter, and with it.
        """
        if self.models is not None and not {model, *others} & self.models:
            message = f"This key may not use {shown(model)}."
            raise ApiError(403, message, "model_not_allowed", "model")

    def check_admin(self) -> None:
        """Raise ApiError (403) if the key may not load and unload models."""
        if not self.admin:
            message = "This key may not do that: it is for keys with 'admin = true'."
            raise ApiError(403, message, "not_admin")


class KeyRing:
    """The keys of a server.

    Raises
    ------
    CortiqError : the file cannot be read, or is none of keys.
    """

    def __init__(self, options: ServeOptions, clock: Callable[[], float] = time.monotonic) -> None:
        own = options.api_key
        self._own = [] if own is None else [ApiKey(digest_of(own))]
        self._path = None if options.api_keys is None else Path(options.api_keys)
        self._clock, self._checked = clock, clock()
        self._seen, self._named = self._mark(), self._read()

    @property
    def open(self) -> bool:
        """Whether no key is needed."""
        return not self._own and self._path is None

    @property
    def keys(self) -> Sequence[ApiKey]:
        """All keys, as the file has them now."""
        return [*self._own, *self._named]

    def check(self, headers: Headers) -> ApiKey | None:
        """Return the key of a request, None where none is needed; raise ApiError (401)."""
        if self.open:
            return None
        self._look()
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if "authorization" not in headers and "x-api-key" in headers:
            scheme, given = "bearer", headers["x-api-key"]  # as Anthropic's clients send it
        if scheme.lower() != "bearer" or not given.strip():
            message = "You didn't provide an API key: send 'Authorization: Bearer KEY'."
            raise ApiError(401, message, "invalid_api_key")
        digest, found = digest_of(given.strip()), None
        for key in self.keys:  # all of them: the time tells nothing about which
            found = key if hmac.compare_digest(digest, key.digest) else found
        if found is None:
            raise ApiError(401, "Incorrect API key provided.", "invalid_api_key")
        return found

    def reload(self) -> None:
        """Read the file again; keep what there was if it has an error."""
        if self._path is None:
            return
        self._seen = self._mark()
        try:
            self._named = self._read()
        except CortiqError as error:
            LOG.error(f"the keys stay as they were: {error}")
            return
        LOG.info(f"read {len(self._named)} keys from {self._path}")

    def _look(self) -> None:
        now = self._clock()
        if self._path is not None and now - self._checked >= CHECK_SECONDS:
            self._checked = now
            if self._mark() != self._seen:
                self.reload()

    def _mark(self) -> tuple[int, ...]:
        """Return what changes when the file is written or replaced."""
        try:
            found = self._path.stat() if self._path is not None else None
        except OSError:
            found = None
        return () if found is None else (found.st_ino, found.st_size, found.st_mtime_ns)

    def _read(self) -> list[ApiKey]:
        return [] if self._path is None else read_keys(self._path)


def digest_of(key: str) -> bytes:
    """Return a key's SHA-256."""
    return hashlib.sha256(key.encode()).digest()


def read_keys(path: Path) -> list[ApiKey]:
    """Read a file of keys.

    Raises
    ------
    CortiqError : it cannot be read. FormatError : it is no file of keys; the message says where.
    """
    try:
        data = path.read_bytes() if path.stat().st_size <= MAX_FILE else b"\xff"
        found = tomllib.loads(data.decode())
    except OSError as error:
        raise CortiqError(f"cannot be read: {error.strerror}", where=str(path)) from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise FormatError(f"is no file of keys: {error}", where=str(path)) from None
    tables = found.pop("keys", None)
    if found or not isinstance(tables, dict) or not tables:
        raise FormatError("a file of keys has tables [keys.NAME]", where=str(path))
    made = [_key(name, table, f"{path}: keys.{name}") for name, table in tables.items()]
    if len({key.digest for key in made}) < len(made):
        raise FormatError("two names have the same key", where=str(path))
    return made


def _key(name: str, table: Any, where: str) -> ApiKey:
    if not NAME.fullmatch(name) or not isinstance(table, dict):
        raise FormatError("a name has letters, digits and ._@-, and is of a table", where=where)
    for field in table:
        if field not in FIELDS:
            hint = f"there are {', '.join(FIELDS)}"
            raise FormatError(f"has an unknown field {shown(field)}", where=where, hint=hint)
    models, admin = table.get("models"), table.get("admin", False)
    if models is not None and not _are_texts(models):
        raise FormatError("'models' is a list of names", where=where)
    if not isinstance(admin, bool):
        raise FormatError("'admin' is true or false", where=where)
    limits = {name: _integer(table, name, 1, 2**53, where) for name in LIMITS}
    return ApiKey(
        _digest(table, where),
        name,
        priority=_integer(table, "priority", *PRIORITIES, where) or 0,
        models=None if models is None else frozenset(models),
        admin=admin,
        **limits,
    )


def _digest(table: Mapping[str, Any], where: str) -> bytes:
    key, digest = table.get("key"), table.get("sha256")
    if (key is None) == (digest is None):
        raise FormatError("has either 'key' or 'sha256'", where=where)
    if key is not None:
        if not isinstance(key, str) or len(key) < LEAST_KEY or not key.isprintable() or " " in key:
            what = f"'key' is a text of at least {LEAST_KEY} characters, none of them a space"
            raise FormatError(what, where=where)
        return digest_of(key)
    if not isinstance(digest, str) or not SHA256.fullmatch(digest):
        raise FormatError("'sha256' is 64 hexadecimal digits", where=where)
    return bytes.fromhex(digest)


def _integer(table: Mapping[str, Any], name: str, least: int, most: int, where: str) -> int | None:
    value = table.get(name)
    if value is not None and (type(value) is not int or not least <= value <= most):
        what = f"{name!r} is an integer from {least} to {most}, not {shown(value)}"
        raise FormatError(what, where=where)
    return value


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
