"""A headless Chromium, driven through a pipe: no library, no port."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from work import HANG_SECONDS

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page of a browser; `see` evaluates JavaScript on it."""

    def __init__(self, folder: Path, width: int, height: int = 800) -> None:
        there, our_end = os.pipe()
        our_start, back = os.pipe()
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (there, back)]

        def as_it_expects_them() -> None:
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        assert BROWSER is not None
        self._process = subprocess.Popen(
            [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
             f"--user-data-dir={folder}", f"--window-size={width},{height}", "about:blank"],
            preexec_fn=as_it_expects_them, pass_fds=(3, 4),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for end in (there, back, *ends):
            os.close(end)
        self._out, self._in, self._held, self._number = our_end, our_start, b"", 0
        self.complaints: list[str] = []
        pages = self._call("Target.getTargets")["targetInfos"]
        target = next(page for page in pages if page["type"] == "page")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Runtime", "Log", "Page", "Network"):
            self.call(f"{domain}.enable")
        phone = width < 600
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, mobile=phone,
            deviceScaleFactor=1,
        )  # fmt: skip

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._call(method, self._session, **parameters)

    def _call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        order = {"id": self._number, "method": method, "params": parameters}
        if session:
            order["sessionId"] = session
        os.write(self._out, json.dumps(order).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._held:
            part = os.read(self._in, 1 << 16)
            assert part, "the browser has ended"
            self._held += part
        whole, _, self._held = self._held.partition(b"\0")
        return json.loads(whole)

    def _note(self, event: dict[str, Any]) -> None:
        """Remember what the page complained of."""
        if event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(event["params"]["exceptionDetails"]))
        if event.get("method") == "Log.entryAdded":
            self.complaints.append(event["params"]["entry"]["text"])

    def see(self, expression: str) -> Any:
        """Evaluate an expression and await its promises."""
        made = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in made, made["exceptionDetails"]
        return made["result"].get("value")

    def until(self, expression: str, seconds: float = HANG_SECONDS) -> Any:
        """Wait until an expression is true."""
        give_up = time.monotonic() + seconds
        while time.monotonic() < give_up:
            if found := self.see(expression):
                return found
            time.sleep(0.03)
        raise AssertionError(f"never so: {expression}\n{self.see('document.body.innerText')}")

    def type(self, text: str) -> None:
        """Write into what has the focus."""
        self.call("Input.insertText", text=text)

    def press(self, key: str, code: int) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code,
                text="\r" if kind == "keyDown" and key == "Enter" else "",
            )  # fmt: skip

    def click(self, selector: str) -> None:
        """Press the mouse where an element is, as a user does: nothing may lie above it."""
        box = self.see(
            f"(() => {{ const b = document.querySelector({json.dumps(selector)})"
            ".getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call(
                "Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left",
                clickCount=1,
            )  # fmt: skip

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._out)
        os.close(self._in)
