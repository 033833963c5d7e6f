"""The built-in chat page: three files that load nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

PAGE_FILES = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
"""Path to file and type."""
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Browser policy of the page: nothing may leave this server."""
Endpoint = Callable[[Request], Awaitable[Response]]


def page_endpoint(path: str) -> Endpoint:
    """Return the endpoint of one of the page's files."""
    name, kind = PAGE_FILES[path]
    data = (files("cortiq.serve") / "page" / name).read_bytes()
    headers = {"content-security-policy": CONTENT_SECURITY_POLICY, "cache-control": "no-cache"}

    async def show(request: Request) -> Response:
        return Response(data, media_type=kind, headers=headers)

    return show
