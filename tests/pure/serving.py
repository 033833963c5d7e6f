"""A server of a tiny model in a process of its own."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from work import HANG_SECONDS

TEMPLATE = (
    "{% for t in tools or [] %}<tool_call> {{ t.function.name }}\n{% endfor %}"
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% if enable_thinking %}<think>\n{% endif %}"
    "{% endif %}{# </think> #}"
)
TINY = "synthetic:mini-qwen3?seed=1&format=w8"
ADDRESS = re.compile(r"serving on (\S+)")


class Server:
    """A running `cortiq serve`; its log lines arrive in `lines`."""

    def __init__(self, *arguments: str) -> None:
        self.lines: list[str] = []
        command = [sys.executable, "-m", "cortiq", "serve", *arguments, "--port", "0"]
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
            env=dict(os.environ),
        )  # fmt: skip
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()
        self.url = self._address()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))

    def _address(self) -> str:
        give_up = time.monotonic() + HANG_SECONDS
        while time.monotonic() < give_up and self.process.poll() is None:
            for line in self.lines:
                if found := ADDRESS.search(line):
                    return found[1]
            time.sleep(0.02)
        self.process.kill()
        raise AssertionError("the server did not start:\n" + "\n".join(self.lines))

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def requests(self) -> list[str]:
        """Lines of requests so far."""
        return [line for line in list(self.lines) if " request " in line]

    def request_after(self, count: int) -> str:
        """The line of the next request, when its work has ended."""
        give_up = time.monotonic() + HANG_SECONDS
        while time.monotonic() < give_up:
            if len(self.requests()) > count:
                return self.requests()[count]
            time.sleep(0.01)
        raise AssertionError("no request ended")

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Ask it to end; its exit code."""
        self.process.send_signal(number)
        code = self.process.wait(30)
        self._reading.join(5)
        return code


@contextlib.contextmanager
def serving(folder: Path, *arguments: str, model: str = TINY) -> Iterator[Server]:
    """A server of a tiny model with a chat template."""
    template = folder / "template.jinja"
    template.write_text(TEMPLATE)
    server = Server(
        model, "--chat-template", str(template), "--context", "512", "--threads", "1", *arguments
    )
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.stop(signal.SIGKILL)
