"""Make the pictures of docs/images: a chat, the server's page, the conformance matrix.

    python tools/screenshots.py [--reports cpu.json reference.json ...]

The chat is typed at a pseudo-terminal and drawn by rich; the pages are opened in a headless
Chromium. Needs pexpect, pyte, Chromium (tools/install-chromium), the model smollm2, and for the
matrix reports that `cortiq conform --json` wrote. Nothing is drawn by hand.
"""

from __future__ import annotations

import argparse
import base64
import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
SIZE = (96, 26)
TURNS = ("What is the capital of France?", "And what is it known for?", "/stats")
DRAWN = "\x1b[?25h"


def chat(folder: Path) -> str:
    """Return the screen of a chat with two answers, as SVG."""
    import pexpect
    import pyte
    from rich.console import Console
    from rich.text import Text

    screen = pyte.Screen(*SIZE)
    stream = pyte.Stream(screen)
    variables = {**os.environ, "PROMPT_TOOLKIT_NO_CPR": "1", "TERM": "xterm"}
    command = ["-m", "cortiq", "chat", "smollm2", "--max-tokens", "60", "--no-history"]
    child = pexpect.spawn(
        sys.executable, command, env=variables, encoding="utf-8", timeout=120,
        dimensions=SIZE[::-1],
    )  # fmt: skip
    child.logfile_read = stream
    stream.write = stream.feed  # type: ignore[attr-defined]
    stream.flush = lambda: None  # type: ignore[attr-defined]
    child.expect_exact("/help for help")
    child.expect_exact(DRAWN)
    for turn in TURNS:
        child.send(turn + "\r")
        child.expect_exact("same on every backend" if turn == "/stats" else "first after")
        child.expect_exact(DRAWN)
    child.sendeof()
    child.close()
    text = "\n".join(line.rstrip() for line in screen.display).rstrip()
    console = Console(record=True, width=SIZE[0], file=io.StringIO())
    console.print(Text(f"$ cortiq chat smollm2 --max-tokens 60\n{text}"), highlight=False)
    drawn = console.export_svg(title="cortiq chat")
    return re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)  # nothing from elsewhere


def browser(folder: Path, width: int, height: int) -> Any:
    """Yield a page of a headless Chromium, as the tests use it."""
    sys.path[:0] = [str(ROOT / "tests" / "pure"), str(ROOT / "tests")]
    from browser import Browser

    return Browser(folder, width, height)


def picture(page: Any) -> bytes:
    """Return a screenshot of the browser, as PNG."""
    return base64.b64decode(page.call("Page.captureScreenshot", format="png")["data"])


def server_page(folder: Path) -> bytes:
    """Return the server's page after a question."""
    command = [sys.executable, "-m", "cortiq", "serve", "smollm2", "--port", "0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    try:
        assert server.stderr is not None
        found = None
        while found is None:
            found = re.search(r"serving on (\S+)", server.stderr.readline())
        page = browser(folder, 900, 620)
        page.call("Page.navigate", url=found[1])
        page.until("document.querySelector('#backend')?.textContent")
        settings = "document.querySelector('#settings').elements"
        page.see(f"{settings}.max_tokens.value = 60; {settings}.temperature.value = 0")
        page.click("#text")
        page.type("Why is the sky blue?")
        page.click("#send")
        page.until("document.querySelector('#send').textContent === 'Send'")
        made = picture(page)
        page.close()
        return made
    finally:
        server.terminate()
        server.wait()


def matrix(folder: Path, reports: list[str]) -> bytes:
    """Return the page of reports side by side."""
    folder.mkdir()
    file = folder / "matrix.html"
    command = [sys.executable, "-m", "cortiq", "matrix", *reports, "-o", str(file)]
    subprocess.run(command, check=True)
    page = browser(folder, 900, 700)
    page.call("Page.navigate", url=file.as_uri())
    page.until("document.readyState === 'complete'")
    made = picture(page)
    page.close()
    return made


def main() -> None:
    """Write the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reports", nargs="*", default=[])
    parser.add_argument("--only", choices=("chat", "page", "matrix"))
    given = parser.parse_args()
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if given.only in (None, "chat"):
            (IMAGES / "chat.svg").write_text(chat(folder), "utf-8")
        if given.only in (None, "page"):
            (IMAGES / "page.png").write_bytes(server_page(folder / "page"))
        if given.only in (None, "matrix") and given.reports:
            (IMAGES / "matrix.png").write_bytes(matrix(folder / "matrix", given.reports))


if __name__ == "__main__":
    main()
