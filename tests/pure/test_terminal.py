"""Texts of files and models never control a terminal, nor flood it."""

from __future__ import annotations

import ast
import io
import json
import logging
import struct
from pathlib import Path

import pytest
from click.testing import CliRunner
from gguf_bytes import small
from hypothesis import given
from hypothesis import strategies as st

from cortiq.cli import render
from cortiq.cli.main import cli, main
from cortiq.errors import CortiqError, FormatError, OptionError, brief, printable, printable_json
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.formats.strict_json import read_bytes, read_object
from cortiq.serve.logs import JsonFormatter, TextFormatter

CLI = Path(render.__file__).parent
ESCAPES = "\x1b[2J\x1b]0;title\x07\x9b31m\r\x08\x7f"
COMMANDS = {chr(n) for n in (*range(32), *range(127, 160))} - {"\n", "\t"}
texts = st.text(st.characters(max_codepoint=0x2FF), max_size=60)


@given(texts, texts | st.none(), texts | st.none())
def test_no_error_says_anything_to_a_terminal_or_has_more_than_ten_lines(what, where, hint):
    for many in (1, 40):
        error = CortiqError(what * many, where=where, hint=hint and f"{hint}\n" * many)
        said = str(error)
        assert not COMMANDS & set(said) and said.count("\n") < 10
        assert not COMMANDS & set(str(OptionError("x", what))) and error.exit_code == 2


def test_a_long_error_keeps_its_beginning_and_its_end():
    assert brief("\n".join(map(str, range(40)))) == "0\n1\n2\n... (40 lines)\n39"
    assert len(brief("x" * 10_000)) == 2000 and brief("a\nb") == "a\nb"
    assert printable("a\x1b[2J\x9bé\t漢") == "a\\x1b[2J\\x9bé\t漢"
    odd = {"a": ESCAPES + "\x80é"}
    assert json.loads(printable_json(json.dumps(odd, ensure_ascii=False))) == odd


def test_everything_that_the_command_line_says_goes_through_one_place():
    """`click.echo` and `print` write what they are given: only `render` and `main` call them."""
    allowed = {"render.py", "main.py", "completion.py"}
    found = []
    for path in CLI.glob("*.py"):
        calls = [n.func for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
        names = {ast.unparse(call) for call in calls}
        if names & {"click.echo", "print", "click.secho"} and path.name not in allowed:
            found.append(path.name)
    assert found == []


class Tty(io.StringIO):
    def isatty(self):
        return True


def test_generated_text_is_whole_in_a_pipe_and_harmless_at_a_terminal(monkeypatch):
    for stream, expected in ((io.StringIO(), ESCAPES), (Tty(), None)):
        monkeypatch.setattr("sys.stdout", stream)
        for letter in ESCAPES:
            render.echo_piece(letter)
        written = stream.getvalue()
        assert written == expected or (expected is None and not COMMANDS & set(written))
    assert "[2J" in written


def test_messages_tables_and_json_are_harmless_everywhere(monkeypatch, capsys):
    render.note(ESCAPES)
    render.echo(ESCAPES)
    render.print_table(("a",), [(ESCAPES,)])
    render.print_json({"a": ESCAPES})
    made = capsys.readouterr()
    assert not COMMANDS & set(made.out + made.err)
    assert json.loads(made.out.splitlines()[-1]) == {"a": ESCAPES}
    monkeypatch.setattr("sys.stdout", terminal := Tty())
    render.print_table(("a",), [("before" + ESCAPES,)])
    assert "\x1b[2J" not in terminal.getvalue() and "\x07" not in terminal.getvalue()


@pytest.mark.parametrize(
    "arguments",
    [["generate", f"no{ESCAPES}model"], [ESCAPES], ["rm", ESCAPES], ["list", f"--{ESCAPES}"],
     ["generate", "synthetic:" + ESCAPES, "-p", "a"]],
)  # fmt: skip
def test_arguments_come_back_harmless(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    made = capsys.readouterr()
    assert ended.value.code == 2 and made.err and not COMMANDS & set(made.out + made.err)


def test_names_in_files_come_back_harmless(tmp_path, capsys):
    config = {"model_type": ESCAPES, ESCAPES: ESCAPES}
    (tmp_path / "config.json").write_text(json.dumps(config))
    header = json.dumps({ESCAPES: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    data = struct.pack("<Q", len(header)) + header + b"\0" * 4
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(SystemExit):
        main(["inspect", str(tmp_path)])
    assert not COMMANDS & set(capsys.readouterr().err)


def test_log_lines_are_harmless():
    try:
        raise ValueError(ESCAPES)
    except ValueError as error:
        facts = {"facts": {"path": ESCAPES, "host": "a b\x1b"}}
        record = logging.LogRecord(
            "x", 20, "f", 1, "request " + ESCAPES, (), (type(error), error, error.__traceback__)
        )
    vars(record).update(facts)
    for made in (TextFormatter().format(record), JsonFormatter().format(record)):
        assert not COMMANDS & set(made)
    assert json.loads(made)["path"] == ESCAPES


POINTER = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
)


@pytest.mark.parametrize(
    "name",
    ["model.gguf", "model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json",
     "chat_template.jinja", "model.safetensors.index.json"],
)  # fmt: skip
def test_a_pointer_of_git_lfs_is_called_one(name, tmp_path):
    path = tmp_path / name
    path.write_bytes(POINTER)
    opened = open_checkpoint if path.suffix in (".gguf", ".safetensors") else read_bytes
    if path.suffix == ".safetensors":
        (tmp_path / "config.json").write_text('{"model_type": "llama"}')
        path = tmp_path
    with pytest.raises(FormatError, match="is a Git LFS pointer to a file of 12345 bytes") as found:
        opened(path)
    assert "git lfs pull" in found.value.hint


def test_what_begins_like_a_pointer_in_its_middle_is_none(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"a": POINTER.decode()}))
    assert read_object(tmp_path / "a.json")["a"] == POINTER.decode()
    (tmp_path / "m.gguf").write_bytes(bytes(small()))
    made = CliRunner().invoke(cli, ["inspect", str(tmp_path / "m.gguf")])
    assert "LFS" not in str(made.exception)
