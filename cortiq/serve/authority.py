"""Strict parsing of `Host` and `Origin` headers: a host, a port, and nothing else.

`Host` and `Origin` decide who may ask, so that what is malformed is refused and never interpreted:
two readers that understand it differently would be a way around the check.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import NamedTuple

MAX_PORT = 65535
MAX_AUTHORITY = 300
"""Characters of an authority: a domain name has at most 253, a port six with its colon."""
PORTS = {"http": 80, "https": 443}
"""Default ports by scheme."""
LOCALHOST = "localhost"

_NAME = r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*\.?"
_AUTHORITY = re.compile(rf"(?:\[([0-9A-Fa-f:.]+)\]|({_NAME}))(?::([0-9]{{1,5}}))?", re.ASCII)
_ORIGIN = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.ASCII)


class Authority(NamedTuple):
    """A host in lower case, IPv6 addresses without brackets, and the port if one is given."""

    host: str
    port: int | None

    def on(self, scheme: str) -> Authority:
        """Return the authority with its port, that of the scheme where none is named."""
        return self if self.port is not None else Authority(self.host, PORTS.get(scheme))


def read_authority(text: str) -> Authority:
    """Read `HOST`, `HOST:PORT`, `[IPV6]` or `[IPV6]:PORT`.

    Raises
    ------
    ValueError : it is none of these: users, paths, empty ports, ports beyond 65535, zones.
    """
    found = _AUTHORITY.fullmatch(text) if len(text) <= MAX_AUTHORITY else None
    if found is None:
        raise ValueError("it is no host with or without a port")
    six, name, port = found.groups()
    if port is not None and int(port) > MAX_PORT:
        raise ValueError(f"there is no port {port}")
    host = str(IPv6Address(six)) if six else name.lower().removesuffix(".")
    return Authority(host, None if port is None else int(port))


def read_origin(text: str) -> tuple[str, Authority] | None:
    """Read an origin: its scheme and authority; None for "null", the origin of no page at all.

    Raises
    ------
    ValueError : it is no origin.
    """
    if text == "null":
        return None
    found = _ORIGIN.fullmatch(text)
    if found is None:
        raise ValueError("it is no scheme with a host")
    return found[1].lower(), read_authority(found[2])


def is_loopback(host: str) -> bool:
    """Return whether a host is a loopback address or `localhost`.

    All of 127.0.0.0/8 is, and its addresses in IPv6's form.
    """
    if host.lower() == LOCALHOST:
        return True
    try:
        address: IPv4Address | IPv6Address = ip_address(host)
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback
