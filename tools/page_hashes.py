"""Write the hashes of a page's own script and style into its Content-Security-Policy.

A page that also works from a file holds its script; a browser runs it only if its policy names
the hash. `--check` reports pages whose policy names another.
"""

from __future__ import annotations

import base64
import hashlib
import re
import sys
from pathlib import Path

PAGES = (Path(__file__).parent.parent / "cortiq/serve/page/receipt.html",)


def with_hashes(page: str) -> str:
    """Return the page with the hashes that its policy must name."""
    for tag in ("script", "style"):
        inner = re.search(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        if inner is None:
            raise ValueError(f"the page has no <{tag}>")
        digest = base64.b64encode(hashlib.sha256(inner[1].encode()).digest()).decode()
        page, count = re.subn(rf"({tag}-src) 'sha256-[^']*'", rf"\1 'sha256-{digest}'", page)
        if count != 1:
            raise ValueError(f"the policy has no {tag}-src, or several")
    return page


def main() -> int:
    """Write or check every page; exit 1 if one is not as it should be."""
    stale = [page for page in PAGES if with_hashes(page.read_text("utf-8")) != page.read_text()]
    if "--check" not in sys.argv:
        for page in stale:
            page.write_text(with_hashes(page.read_text("utf-8")), "utf-8")
        return 0
    for page in stale:
        print(f"{page}: the policy names other hashes: python tools/page_hashes.py")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
