"""Real terminals and shells: what is said while a model loads, and completion by the Tab key."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from work import HANG_SECONDS

pexpect = pytest.importorskip("pexpect", reason="needs the package pexpect")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals there")
TINY = "synthetic:tiny-llama"
SCRIPTS = Path(sys.executable).parent


def environment(**more):
    path = os.pathsep.join([str(SCRIPTS), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "TERM": "dumb", "PS1": "$ ", **more}


def at_terminal(*arguments, **more):
    child = pexpect.spawn(
        sys.executable, ["-m", "cortiq", *arguments], env=environment(**more), encoding="utf-8",
        timeout=HANG_SECONDS, dimensions=(24, 100),
    )  # fmt: skip
    child.expect(pexpect.EOF)
    child.close()
    return child.exitstatus, child.before


def test_a_terminal_is_told_at_once_that_a_model_is_being_loaded():
    code, screen = at_terminal("run", TINY, "a", "-n", "3", "-b", "reference")
    assert code == 0 and screen.startswith(f"Loading {TINY} ...")
    before, _, after = screen.partition("\r\x1b[K")
    assert "\n" not in before and "cut after 3 tokens" in after
    code, screen = at_terminal("generate", TINY, "a", "-n", "3", "-b", "no-such-backend")
    assert code == 2 and "\r\x1b[Kerror: no backend is named" in screen


def test_a_prompt_is_asked_for_at_a_terminal_where_none_is_given():
    code, screen = at_terminal("generate", TINY)
    assert code == 2 and "missing argument 'PROMPT'" in screen
    code, screen = at_terminal("run", TINY, "-b", "reference")
    assert code == 2 and "no chat template: it is a base model" in screen


STARTS = {
    "bash": (["--norc", "--noprofile"], 'eval "$(cortiq completion bash)"; echo rea""dy'),
    "zsh": (["-f"], 'autoload -U compinit; compinit -u -D; eval "$(cortiq completion zsh)"; '
            'echo rea""dy'),
    "fish": (["--no-config"], 'cortiq completion fish | source; echo rea""dy'),
}  # fmt: skip
"""How a shell is started, and what is typed into it, as the help of `cortiq completion` says."""


@pytest.fixture(params=list(STARTS))
def shell(request, tmp_path):
    name = request.param
    if shutil.which(name) is None:
        pytest.skip(f"there is no {name}")
    (tmp_path / "target.gguf").touch()
    arguments, line = STARTS[name]
    home = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)}
    child = pexpect.spawn(
        name, arguments, env=environment(**home), encoding="utf-8", cwd=tmp_path,
        timeout=60, dimensions=(24, 200),
    )  # fmt: skip
    child.sendline(line)
    child.expect_exact("ready")
    yield child
    child.close(force=True)


def test_shells_complete_commands_models_files_and_flags(shell):
    for typed, completed in (
        ("cortiq run smo", "smollm2"), ("cortiq gen", "generate"),
        ("cortiq run ./ta", "target.gguf"), ("cortiq serve gemma3-", "gemma3-270m"),
        ("cortiq pull qwen2.5-coder:3b", "qwen2.5-coder:3b"), ("cortiq run phi4:", "phi4:14b"),
        ("cortiq run smollm2 --temp", "--temperature"),
    ):  # fmt: skip
        shell.send(f"{typed}\t")
        shell.expect_exact(completed)
        shell.sendcontrol("u")  # empties the line
