"""`cortiq list`, `rm` and `completion`: what people see of the cache, and what shells complete."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from click.testing import CliRunner

from cortiq.cli.completion import SHELLS
from cortiq.cli.list import list as list_command
from cortiq.cli.main import COMMANDS, cli
from cortiq.cli.rm import rm
from cortiq.errors import CortiqError
from cortiq.formats.known_models import KNOWN_MODELS


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache with two models and the rest of an interrupted pull."""
    monkeypatch.setenv("CORTIQ_CACHE", str(tmp_path))
    folder = tmp_path / "models"
    model = KNOWN_MODELS["smollm2"]
    (folder / "smollm2").mkdir(parents=True)
    with (folder / "smollm2" / model.file).open("wb") as file:
        file.truncate(model.size)
    for name in ("hf%3Aorg%2Fname@main", ".hf%3Aorg%2Fother@main.partial"):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text("{}")
    return folder


def test_models_are_listed(cache):
    done = CliRunner().invoke(list_command, [])
    assert re.search(r"smollm2 +base +93.8 MiB", done.stdout)
    assert re.search(r"hf:org/name@main +base +2 B", done.stdout)
    assert "unfinished: hf%3Aorg%2Fother@main, 2 B" in done.stderr
    file = cache / "smollm2" / KNOWN_MODELS["smollm2"].file
    with file.open("r+b") as metadata:
        metadata.write(b"GGUF tokenizer.chat_template")
    (cache / "hf%3Aorg%2Fname@main" / "tokenizer_config.json").write_text('{"chat_template": "x"}')
    assert CliRunner().invoke(list_command, []).stdout.count("chat ") == 2
    (cache / "hf%3Aorg%2Fname@main" / "tokenizer_config.json").unlink()
    for data, count in ((b"GGUF", 1), (b"GGUF tokenizer.chat_template", 2)):
        (cache / "hf%3Aorg%2Fname@main" / "model.gguf").write_bytes(data)
        assert CliRunner().invoke(list_command, []).stdout.count("chat ") == count
    (cache / "hf%3Aorg%2Fname@main" / "model.gguf").unlink()
    (cache / "hf%3Aorg%2Fname@main" / "tokenizer_config.json").touch()
    made = json.loads(CliRunner().invoke(list_command, ["--json"]).stdout)
    assert [m["name"] for m in made["models"]] == ["smollm2", "hf:org/name@main"]
    assert made["models"][0]["licence"] == "Apache-2.0"
    assert made["unfinished"] == {"hf%3Aorg%2Fother@main": 2}


def test_an_empty_cache_says_what_there_could_be(tmp_path, monkeypatch):
    monkeypatch.setenv("CORTIQ_CACHE", str(tmp_path / "none"))
    done = CliRunner().invoke(list_command, [])
    assert "cortiq list --known" in done.stderr and done.exit_code == 0
    assert done.stdout == ""


def test_a_path_is_one_line_of_a_narrow_terminal(monkeypatch, capsys):
    from cortiq.cli.render import print_table

    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    path = "/a/folder/" + "x" * 100
    print_table(("model", "size", "path"), [("a-longer-name", "1 B", path)], whole=True)
    assert path in capsys.readouterr().out


def test_models_are_removed(cache):
    done = CliRunner().invoke(rm, ["smollm2", "hf:org/name", "--unfinished"])
    assert done.exit_code == 0, done.output
    assert "smollm2: 93.8 MiB freed" in done.stdout and "unfinished: 2 B freed" in done.stdout
    assert [path for path in cache.iterdir() if path.suffix != ".lock"] == []


def test_what_cannot_be_removed_is_said_and_nothing_is(cache):
    for arguments in ([], ["smolm2"], ["../smollm2"], [str(cache)]):
        assert isinstance(CliRunner().invoke(rm, arguments).exception, CortiqError)
    assert len(list(cache.glob("*/*"))) == 3


def completions(words, shell="bash"):
    variables = os.environ | {
        "_CORTIQ_COMPLETE": f"{shell}_complete", "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }  # fmt: skip
    command = [sys.executable, "-m", "cortiq"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def test_commands_options_and_models_are_completed(cache):
    assert completions("cortiq ge") == ["plain,generate"]
    assert completions("cortiq rm ") == ["plain,smollm2", "plain,hf:org/name@main"]
    assert "plain,--temperature" in completions("cortiq generate smollm2 --te")
    found = completions("cortiq generate gem")
    assert found == ["file,gem", "plain,gemma3-270m", "plain,gemma3:1b", "plain,gemma3:4b"]


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_every_shell_is_one_that_it_reads(shell):
    made = CliRunner().invoke(cli, ["completion", shell])
    assert made.exit_code == 0 and "_CORTIQ_COMPLETE" in made.stdout
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=made.stdout, text=True, check=True)


@pytest.mark.skipif(not shutil.which("bash"), reason="there is no bash here")
def test_a_real_bash_completes(tmp_path):
    program = tmp_path / "cortiq"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m cortiq "$@"\n')
    program.chmod(0o755)
    script = (
        f'export PATH={tmp_path}:"$PATH"; eval "$(cortiq completion bash)"\n'
        "COMP_WORDS=(cortiq ver); COMP_CWORD=1\n"
        '_cortiq_completion cortiq; echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert done.stdout.split() == ["verify"], done.stderr
    assert "verify" in COMMANDS
