"""Images of requests: data URLs, and addresses that are fetched where the operator allows it."""

from __future__ import annotations

import base64
import binascii
import io
import ipaddress
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import closing
from contextvars import ContextVar
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from time import monotonic
from typing import Any, cast
from urllib.parse import SplitResult, urljoin, urlsplit

from cortiq.errors import shown
from cortiq.serve.errors import ApiError, invalid
from cortiq.vision.decode import MAX_BYTES

SECONDS, WHOLE_SECONDS, REDIRECTS, PIECE = 10.0, 30.0, 3, 1 << 16
"""Longest pause of a connection, and all that a request's images may take together."""
PORTS = {"http": 80, "https": 443}


@dataclass
class Fetches:
    """Time and bytes that are left for fetching the images of one request.

    Attributes
    ----------
    until : time of `monotonic` at which the last connection ends. left : bytes of all together.
    """

    until: float = field(default_factory=lambda: monotonic() + WHOLE_SECONDS)
    left: int = MAX_BYTES

    def seconds(self) -> float:
        """Return how long the next read or write may take; TimeoutError when time is up."""
        left = self.until - monotonic()
        if left <= 0:
            raise TimeoutError
        return min(SECONDS, left)


FETCHES: ContextVar[Fetches | None] = ContextVar("fetches", default=None)
"""For the request that is being read; None where addresses of images are not fetched."""


class TimedSocket:
    """A connection that ends in time, however slowly it brings its bytes.

    A socket's own timeout starts anew with every byte.
    """

    def __init__(self, inner: socket.socket, fetches: Fetches) -> None:
        self._inner, self._fetches = inner, fetches

    def makefile(self, *_: Any) -> io.BufferedReader:
        """Return what `http.client` reads an answer from, which outlives this."""
        return io.BufferedReader(TimedReader(self._inner, self._fetches))

    def sendall(self, data: bytes) -> None:
        """Send a request."""
        self._inner.settimeout(self._fetches.seconds())
        self._inner.sendall(data)

    def close(self) -> None:
        """End the connection, once its answer has been read."""
        self._inner.close()


class TimedReader(io.RawIOBase):
    """The bytes that a connection brings in time."""

    def __init__(self, inner: socket.socket, fetches: Fetches) -> None:
        self._inner, self._fetches = inner, fetches
        self._raw = inner.makefile("rb", buffering=0)

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def readinto(self, into: Any) -> int | None:
        """Read what has arrived."""
        self._inner.settimeout(self._fetches.seconds())
        return self._raw.readinto(into)

    def close(self) -> None:
        """Let the connection end."""
        super().close()
        self._raw.close()


def data_url(data: str, kind: str = "image/*") -> str:
    """Return the data URL of base64 that another API sends as it is."""
    return f"data:{kind};base64,{data}"


def image_bytes(url: str, where: str) -> bytes:
    """Return the file that an image's URL stands for.

    Raises
    ------
    ApiError : it is no image's data, or an address that is not fetched.
    """
    scheme, _, rest = url.partition(":")
    if scheme.lower() == "data":
        return _decoded(rest, where)
    if scheme.lower() not in PORTS:
        message = f"'{where}' must be a data URL, data:image/png;base64,..., not {shown(url)}."
        raise invalid(message, where)
    if (fetches := FETCHES.get()) is None:
        message = (
            f"'{where}': this server fetches no images: send a data URL, or start it with "
            "--fetch-images."
        )
        raise invalid(message, where, "image_url_not_fetched")
    return _fetched(url, where, fetches)


def _decoded(rest: str, where: str) -> bytes:
    head, comma, data = rest.partition(",")
    kind, *parameters = head.split(";")
    if not comma or not kind.startswith("image/") or "base64" not in parameters:
        raise invalid(f"'{where}' must be data:image/TYPE;base64,DATA.", where)
    return decoded(data, where, MAX_BYTES)


def decoded(data: str, where: str, most: int) -> bytes:
    """Return the bytes of base64, at most so many; ApiError for others."""
    if len(data) > most // 3 * 4 + 4:
        raise invalid(f"'{where}' is larger than {most} bytes.", where)
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise invalid(f"'{where}' is not valid base64.", where) from None


def _fetched(url: str, where: str, fetches: Fetches) -> bytes:
    """Fetch an address; every one that it leads to is checked like itself."""
    for _ in range(REDIRECTS + 1):
        try:
            parts = urlsplit(url)
            with closing(_connection(parts, where, fetches)) as connection:
                found = _answer(connection, parts, where, fetches)
        except (OSError, HTTPException, ValueError) as error:
            message = f"'{where}' could not be fetched: {type(error).__name__}."
            raise invalid(message, where, "image_url_not_fetched") from None
        if isinstance(found, bytes):
            return found
        url = urljoin(url, found)
    raise invalid(f"'{where}' leads to more than {REDIRECTS} other addresses.", where)


def _connection(parts: SplitResult, where: str, fetches: Fetches) -> HTTPConnection:
    """Connect to a public address of a host: to the very one that was checked."""
    host, scheme = parts.hostname or "", parts.scheme.lower()
    if scheme not in PORTS or not host or parts.username is not None:
        raise invalid(f"'{where}' is no http or https address.", where)
    port = parts.port or PORTS[scheme]
    addresses = list(public_addresses(host, port))
    if not addresses:
        message = f"'{where}' is not at a public address."
        raise invalid(message, where, "image_url_not_fetched")
    made = socket.create_connection((addresses[0], port), fetches.seconds())
    if scheme == "https":
        made = ssl.create_default_context().wrap_socket(made, server_hostname=host)
    connection = HTTPConnection(host, port)
    connection.sock = cast(socket.socket, TimedSocket(made, fetches))
    return connection


def public_addresses(
    host: str, port: int, resolve: Callable[..., list[Any]] = socket.getaddrinfo
) -> Iterator[str]:
    """Yield the addresses of a host; none, if one of them is not public."""
    found = [str(entry[4][0]) for entry in resolve(host, port, type=socket.SOCK_STREAM)]
    if all(_is_public(address) for address in found):
        yield from found


def _is_public(text: str) -> bool:
    address = ipaddress.ip_address(text.partition("%")[0])
    inner = getattr(address, "ipv4_mapped", None) or getattr(address, "sixtofour", None)
    return address.is_global and not address.is_multicast and (inner is None or inner.is_global)


def _answer(
    connection: HTTPConnection, parts: SplitResult, where: str, fetches: Fetches
) -> bytes | str:
    """Return what an address holds, or where it leads to."""
    path = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
    connection.request("GET", path, headers={"Accept": "image/*", "Connection": "close"})
    response = connection.getresponse()
    if response.status in (301, 302, 303, 307, 308):
        return response.headers.get("Location") or ""
    if response.status != 200:
        raise invalid(f"'{where}' could not be fetched: status {response.status}.", where)
    data = bytearray()
    while piece := response.read(PIECE):
        data += piece
        if len(data) > fetches.left:
            message = f"'{where}': the images of a request are larger than {MAX_BYTES} bytes."
            raise ApiError(413, message, "image_too_large")
    fetches.left -= len(data)
    return bytes(data)
