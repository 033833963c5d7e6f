"""`cortiq generate --json-schema` and `--grammar`: answers of a random model have the form."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("llguidance")

from click.testing import CliRunner
from serving import TINY

from cortiq.cli.main import cli

SCHEMA = {
    "type": "object", "properties": {"a": {"type": "boolean"}, "b": {"enum": ["x", "y"]}},
    "required": ["a", "b"], "additionalProperties": False,
}  # fmt: skip


def generated(*flags):
    command = ["generate", TINY, "-p", "one", "--backend", "cpu", "--threads", "1", "--seed", "3"]
    return CliRunner().invoke(cli, [*command, *map(str, flags)])


def test_an_answer_follows_a_schema_of_a_file_or_of_an_argument(tmp_path):
    (tmp_path / "s.json").write_text(json.dumps(SCHEMA))
    texts = [generated("--json-schema", given, "-n", 200) for given in
             (tmp_path / "s.json", json.dumps(SCHEMA))]  # fmt: skip
    made = json.loads(texts[0].stdout)
    assert set(made) == {"a", "b"} and type(made["a"]) is bool and made["b"] in ("x", "y")
    assert texts[0].stdout == texts[1].stdout


def test_an_answer_follows_a_grammar(tmp_path):
    (tmp_path / "g.gbnf").write_text('root ::= ("ab" | "c") "d"\n')
    made = generated("--grammar", tmp_path / "g.gbnf", "--json")
    assert json.loads(made.stdout)["text"] in ("abd", "cd")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--grammar", "gone.gbnf"), "gone.gbnf: no such file"),
        (("--json-schema", '{"type": "nonsense"}'), "--json-schema: cannot be followed"),
        (("--json-schema", '{"a":'), "--json-schema: must be an object"),
        (("--json-schema", "{}", "--grammar", "g"), "exclude each other"),
        (("--json-schema", "{}", "--receipt", "r.json"), "--receipt: "),
    ],
)
def test_a_form_that_cannot_be_followed_is_refused(flags, words):
    made = generated(*flags)
    assert made.exit_code != 0
    assert words in str(made.exception) + made.output
