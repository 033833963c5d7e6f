"""The built-in pages: files that load nothing from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

SCRIPTS = (
    "page.js", "chats.js", "answer.js", "attach.js", "markdown.js",
    "vendor/markdown-it.js", "vendor/purify.js", "vendor/katex.js",
)  # fmt: skip
PAGE_FILES = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/receipt": ("receipt.html", "text/html"),
    **{f"/{name}": (name, "text/javascript") for name in SCRIPTS},
}
"""Path to file and type."""
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)
"""Browser policy of the pages: nothing may leave this server."""
OWN_POLICY = re.compile(r'http-equiv="Content-Security-Policy" content="([^"]+)"')
"""The policy of a page that also works from a file: it says itself what may run."""
Endpoint = Callable[[Request], Awaitable[Response]]


def page_endpoint(path: str) -> Endpoint:
    """Return the endpoint of one of the pages' files."""
    name, kind = PAGE_FILES[path]
    data = files("cortiq.serve").joinpath("page", *name.split("/")).read_bytes()
    own = OWN_POLICY.search(data.decode()) if kind == "text/html" else None
    policy = CONTENT_SECURITY_POLICY if own is None else own[1]
    headers = {
        "content-security-policy": f"{policy}; frame-ancestors 'none'",
        "cache-control": "no-cache",
    }

    async def show(request: Request) -> Response:
        return Response(data, media_type=kind, headers=headers)

    return show
