"""Images of requests: data URLs, and addresses that are fetched where the operator allows it."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import closing
from contextvars import ContextVar
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import SplitResult, urljoin, urlsplit

from cortiq.errors import shown
from cortiq.serve.errors import ApiError, invalid
from cortiq.vision.decode import MAX_BYTES

FETCHES: ContextVar[bool] = ContextVar("fetches", default=False)
"""Whether addresses of images are fetched, for the request that is being read."""
SECONDS, REDIRECTS, PIECE = 10.0, 3, 1 << 16
PORTS = {"http": 80, "https": 443}


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
    if not FETCHES.get():
        message = (
            f"'{where}': this server fetches no images: send a data URL, or start it with "
            "--fetch-images."
        )
        raise invalid(message, where, "image_url_not_fetched")
    return _fetched(url, where)


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


def _fetched(url: str, where: str) -> bytes:
    """Fetch an address; every one that it leads to is checked like itself."""
    for _ in range(REDIRECTS + 1):
        try:
            parts = urlsplit(url)
            with closing(_connection(parts, where)) as connection:
                found = _answer(connection, parts, where)
        except (OSError, HTTPException, ValueError) as error:
            message = f"'{where}' could not be fetched: {type(error).__name__}."
            raise invalid(message, where, "image_url_not_fetched") from None
        if isinstance(found, bytes):
            return found
        url = urljoin(url, found)
    raise invalid(f"'{where}' leads to more than {REDIRECTS} other addresses.", where)


def _connection(parts: SplitResult, where: str) -> HTTPConnection:
    """Connect to a public address of a host: to the very one that was checked."""
    host, scheme = parts.hostname or "", parts.scheme.lower()
    if scheme not in PORTS or not host or parts.username is not None:
        raise invalid(f"'{where}' is no http or https address.", where)
    port = parts.port or PORTS[scheme]
    addresses = list(public_addresses(host, port))
    if not addresses:
        message = f"'{where}' is not at a public address."
        raise invalid(message, where, "image_url_not_fetched")
    made = socket.create_connection((addresses[0], port), SECONDS)
    if scheme == "https":
        made = ssl.create_default_context().wrap_socket(made, server_hostname=host)
    connection = HTTPConnection(host, port, timeout=SECONDS)
    connection.sock = made
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


def _answer(connection: HTTPConnection, parts: SplitResult, where: str) -> bytes | str:
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
        if len(data) > MAX_BYTES:
            raise ApiError(413, f"'{where}' is larger than {MAX_BYTES} bytes.", "image_too_large")
    return bytes(data)
