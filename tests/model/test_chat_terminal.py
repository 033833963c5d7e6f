"""`cortiq chat` at a real terminal: keys go in through a pseudo-terminal, the screen comes out."""

from __future__ import annotations

import os
import re
import sys

import pytest
from work import HANG_SECONDS

pexpect = pytest.importorskip("pexpect", reason="needs the package pexpect")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals there")

CTRL_C, CTRL_D, UP, ALT_ENTER = "\x03", "\x04", "\x1b[A", "\x1b\r"
DRAWN = "\x1b[?25h"
"""The cursor is shown again: the prompt has been drawn, and keys are waited for."""
ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|[=>()][0-9A-B]?)")


class Screen:
    """A chat at a terminal of 80 columns."""

    def __init__(self, path, tmp_path, *arguments):
        environment = {
            **os.environ, "PROMPT_TOOLKIT_NO_CPR": "1", "TERM": "xterm", "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        self.history = tmp_path / "chat-history"
        environment["CORTIQ_CACHE"] = str(tmp_path)
        command = ["-m", "cortiq", "chat", str(path), "--threads", "1", *arguments]
        self.child = pexpect.spawn(
            sys.executable, command, env=environment, encoding="utf-8", timeout=HANG_SECONDS,
            dimensions=(24, 80),
        )  # fmt: skip
        self.wait("/help for help")
        self.wait(DRAWN)

    def type(self, text):
        self.child.send(text)

    def enter(self, text=""):
        self.child.send(text + "\r")

    def wait(self, words):
        """Wait for words on the screen; everything that came before and with them."""
        self.child.expect_exact(words)
        return ESCAPES.sub("", self.child.before + words)

    def answered(self):
        """Wait for the end of an answer: the line about it, and the next prompt."""
        return self.wait("first after") + self.wait(DRAWN)

    def leave(self):
        self.type(CTRL_D)
        self.child.expect(pexpect.EOF)
        self.child.close()
        return self.child.exitstatus


def test_a_chat_from_hello_to_goodbye(smollm2_path, tmp_path):
    screen = Screen(smollm2_path, tmp_path, "-n", "8")
    screen.enter("What is the capital of France?")
    shown = screen.answered()
    assert "Paris" in shown and "0 of 37 prompt tokens cached" in shown
    assert "tokens/s" in shown
    screen.enter("And of Italy?")
    cached = re.search(r"(\d+) of (\d+) prompt tokens cached", screen.answered())
    assert 37 <= int(cached[1]) < int(cached[2])
    screen.type(f"One line{ALT_ENTER}and another\r")
    screen.answered()
    screen.enter("/stats")
    assert "answers 3" in screen.wait("same on every backend")
    screen.enter(f"/save {tmp_path / 'saved.json'}")
    screen.wait("6 messages")
    assert "One line\\nand another" in (tmp_path / "saved.json").read_text()
    assert screen.leave() == 0
    assert "+And of Italy?" in screen.history.read_text()
    assert screen.history.stat().st_mode & 0o077 == 0


def test_ctrl_c_stops_the_answer_and_not_the_program(smollm2_path, tmp_path):
    screen = Screen(smollm2_path, tmp_path, "-n", "4000", "--ignore-eos", "--no-history")
    screen.enter("Tell me a very long story.")
    screen.child.expect("[a-z]{4,} [a-z]{2,} ")  # it has begun
    screen.type(CTRL_C)
    screen.wait("[stopped; /more continues]")
    screen.answered()
    screen.type(CTRL_C)  # at the prompt it ends nothing either
    screen.wait("Ctrl-D or /bye leaves")
    screen.enter("/set max_tokens 4")
    screen.wait("max_tokens 4")
    screen.enter("Hello")
    cached = re.search(r"(\d+) of (\d+) prompt tokens cached", screen.answered())
    assert int(cached[1]) > 30, "the stopped answer was read, and is not read again"
    screen.type(UP)
    screen.wait("Hello")
    screen.enter()
    screen.answered()
    screen.enter("/nonsense")
    screen.wait("there is no command /nonsense")
    assert screen.leave() == 0
    assert not screen.history.exists()
