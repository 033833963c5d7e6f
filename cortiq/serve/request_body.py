"""Bodies of requests as bytes, within limits of size and time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest

from cortiq.serve.errors import ApiError
from cortiq.serve.http_responses import ClientGone
from cortiq.serve.options import ServeOptions

DRAIN_SECONDS, DRAIN_BYTES = 2.0, 64 << 20
"""Limits for reading and discarding a body that is too large."""

TURNS_TO_LOSS = 8
"""Turns of the event loop from data in a socket's buffer to the loss of its connection."""


async def body_bytes(request: HttpRequest, options: ServeOptions) -> bytes:
    """Read a request's body.

    Raises
    ------
    ApiError : it is too large, or too slow.
    ClientGone : the client disconnected before all of it had arrived.
    """
    most, data = options.body_bytes, bytearray()
    length = request.headers.get("content-length", "0")
    parts = request.stream()
    try:
        async with asyncio.timeout(options.body_seconds):
            if length.isdigit() and int(length[:20]) > most:
                raise body_too_large(most)
            async for part in parts:
                data += part
                if len(data) > most:
                    raise body_too_large(most)
    except ClientDisconnect:
        raise ClientGone from None
    except TimeoutError:
        if await has_disconnected(request):
            raise ClientGone from None
        raise ApiError(408, "The body did not come in time.", "body_timeout") from None
    except ApiError:
        await drain_body(parts)
        raise
    return bytes(data)


async def has_disconnected(request: HttpRequest) -> bool:
    """Say whether the client has disconnected, once the loop has read what already arrived.

    A loop that was busy until the time ended finds data, the end of the connection, and
    its loss one turn after the other, and the end of the time before them.
    """
    for _ in range(TURNS_TO_LOSS):
        await asyncio.sleep(0)
    return await request.is_disconnected()


def body_too_large(most: int) -> ApiError:
    """Return the error (413) of a body that is larger than allowed."""
    message = (
        f"The body is larger than {most} bytes: send less, such as smaller images or a compressed "
        "sound, or start the server with a larger --body-bytes."
    )
    return ApiError(413, message, "body_too_large")


async def drain_body(parts: AsyncIterator[bytes]) -> None:
    """Read and discard what a client still sends, within limits of time and size.

    A client whose connection is closed while it sends may never read the response.
    """
    count = 0
    with contextlib.suppress(TimeoutError, ClientDisconnect):
        async with asyncio.timeout(DRAIN_SECONDS):
            async for part in parts:
                count += len(part)
                if count > DRAIN_BYTES:
                    return
