"""The command line: what it imports, prints, refuses, and exits with."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from folders import write_llama
from scripted import VOCABULARY, scripted_model
from work import HANG_SECONDS

import cortiq
from cortiq.cli.main import COMMANDS, GROUPS, main
from cortiq.cli.main import cli as group
from cortiq.formats import fetch
from cortiq.options import (
    ANSWER_DEFAULTS,
    GenerateOptions,
    LoadOptions,
    ScoreOptions,
    environment_name,
    flag,
    specs,
)
from cortiq.tokenizer.tokenizer import byte_tokenizer

HELP_MODULES = 20
"""Modules of ours that printing a help text may import."""


def run(*arguments, stdin="", environment=None):
    command = [sys.executable, "-m", "cortiq", *arguments]
    environment = {**os.environ, **(environment or {})}
    return subprocess.run(
        command, input=stdin, capture_output=True, text=True, env=environment, check=False
    )


@pytest.fixture
def cli(monkeypatch, capsys):
    """Runs a command in this process on a scripted model; gives exit code, stdout, stderr."""

    def call(*arguments, answer="hello", stdin=b"", **details):
        model = scripted_model(answer, **details)
        monkeypatch.setattr(cortiq, "load", lambda name, **options: model, raising=False)
        monkeypatch.setattr(fetch, "check_there", lambda name: None)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as exit:
            main(arguments)
        out, err = capsys.readouterr()
        call.model = model
        return exit.value.code, out, err

    return call


@pytest.mark.parametrize("arguments", [["--help"], ["generate", "--help"], ["--version"]])
def test_help_imports_neither_numpy_nor_a_plugin(arguments):
    script = (
        "import sys\nfrom cortiq.cli.main import main\n"
        f"try: main({arguments!r})\n"
        "except SystemExit as e: assert not e.code\n"
        "heavy = [m for m in sys.modules if m.split('.')[0] in "
        "('numpy', 'rich', 'pluggy', 'cortiq_reference', 'tokenizers', 'jinja2')]\n"
        "ours = [m for m in sys.modules if m.split('.')[0] == 'cortiq']\n"
        f"sys.exit(' '.join(heavy or ours[{HELP_MODULES}:]) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_command_has_the_help_of_the_list():
    for name, sentence in COMMANDS.items():
        command = group.get_command(None, name)
        assert command.name == name
        assert command.help.splitlines()[0] == sentence


def test_the_help_has_every_command_under_one_heading():
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(COMMANDS)
    done = run("--help")
    headings = [line for line in done.stdout.splitlines() if line.strip(":") in GROUPS]
    assert headings == [f"{heading}:" for heading in GROUPS]


def test_flags_stand_under_the_heading_of_their_class():
    text = run("run", "--help").stdout
    own, generation, loading = (text.index(f"\n{h}:") for h in ("Options", "Generation", "Loading"))
    assert own < text.index("--raw") < generation < text.index("--temperature") < loading
    assert text.index("--backend") > loading and "default: the model's" in text


def test_help_of_generate_shows_every_option_once():
    text = run("generate", "--help").stdout
    for options in (GenerateOptions, LoadOptions):
        for name in specs(options):
            assert text.count(f"{flag(name)} ") == 1, name
            assert "".join(environment_name(name)) in text.replace("\n", "").replace(" ", "")
    text = run("score", "--help").stdout
    assert all(f"{flag(name)} " in text for name in specs(ScoreOptions))


def test_text_is_streamed_to_stdout_and_nothing_else(cli):
    assert cli("generate", "m", "-p", "ab") == (0, "hello\n", "")


def test_json_is_one_object_with_the_keys(cli):
    code, out, err = cli("generate", "m", "-p", "ab", "--json")
    assert (code, err, out.count("\n")) == (0, "", 1)
    made = json.loads(out)
    assert list(made) == [
        "text", "token_ids", "finish_reason", "backend", "device", "placement", "seed", "contract",
        "model_hash", "fingerprint", "digest", "note", "stats",
    ]  # fmt: skip
    assert (made["text"], made["finish_reason"], made["backend"]) == ("hello", "stop", "scripted")
    assert made["placement"] == {"scripted": 2} and len(made["digest"]) == 64


def test_facts_about_every_token_are_in_the_json(cli):
    facts = ("--trace", "--confidence", "--calibration", "2")
    done = run("generate", "synthetic:tiny-llama", "ab", "-n", "4", *facts, "--json")
    made = json.loads(done.stdout)
    assert len(made["confidence"]) == len(made["trace"]) == len(made["token_ids"]) == 4
    assert [row["token_id"] for row in made["trace"]] == made["token_ids"]
    assert len(made["trace"][0]["digest"]) == 32
    code, out, err = cli("generate", "m", "ab", *facts)
    assert (code, out) == (2, "") and "--json" in err


@pytest.mark.parametrize(
    ("stdin", "prompt"),
    [("é ", "é "), ("é \n", "é "), ("é \r\n", "é "), ("é \n\n", "é \n"), ("é\r", "é\r")],
)
def test_prompt_from_stdin_is_taken_as_it_is_but_for_a_line_break_at_its_end(cli, stdin, prompt):
    code, _, _ = cli("generate", "m", "-p", "-", stdin=stdin.encode(), prompt=prompt)
    data = list(prompt.encode())
    assert code == 0 and cli.model.executable.fed[: len(data) + 1] == [*data, ord("h")]


@pytest.mark.parametrize("ids", ["97,98", "97 98", " 97, 98,"])
def test_token_ids_are_fed_as_they_are(cli, ids):
    assert cli("generate", "m", "--ids", ids) == (0, "hello\n", "")
    assert list(cli.model.executable.fed)[:2] == [97, 98]


def test_a_model_without_a_tokenizer_takes_ids_prints_ids_and_keeps_prefixes(tmp_path):
    write_llama(tmp_path, "llama")
    ids, folder, file = "5,6,7,8,9,10,11,12,13", str(tmp_path), str(tmp_path / "prefix")
    refused = run("generate", folder, "-p", "ab")
    assert refused.returncode == 2 and "--ids" in refused.stderr
    saved = run("prefix", "save", folder, file, "--ids", ids)
    assert saved.returncode == 0 and "9 tokens in" in saved.stdout
    base = ["generate", folder, "-n", "4", "--ids", ids + ",14"]
    made = json.loads(run(*base, "--json").stdout)
    plain = run(*base, "--prefix", file, "--stats")
    assert plain.stdout == ",".join(map(str, made["token_ids"])) + "\n"
    assert "9 prompt tokens were cached" in plain.stderr


@pytest.mark.parametrize("command", ["generate", "run"])
@pytest.mark.parametrize(("arguments", "stdin"), [(["ab"], b""), ([], b"ab\n"), (["ab"], b"other")])
def test_the_prompt_is_an_argument_or_whatever_stdin_brings(cli, command, arguments, stdin):
    assert cli(command, "m", *arguments, stdin=stdin)[:2] == (0, "hello\n")
    assert bytes(cli.model.executable.fed[:2]) == b"ab"


def test_a_prompt_given_twice_is_an_error(cli):
    code, out, err = cli("generate", "m", "ab", "-p", "cd")
    assert (code, out) == (2, "") and "given twice" in err


@pytest.mark.parametrize(("arguments", "fed"), [((), "<ab>"), (("--raw",), "ab")])
def test_run_uses_the_chat_template_of_a_model_that_has_one(cli, arguments, fed):
    tokenizer = byte_tokenizer(258)
    tokenizer.chat_templates["default"] = "<{{ messages[0].content }}>"
    made = cli("run", "m", "ab", *arguments, prompt=fed, tokenizer=tokenizer)
    assert made == (0, "hello\n", "")
    assert bytes(cli.model.executable.fed[: len(fed)]).decode() == fed


def test_run_says_that_an_answer_was_cut(cli):
    code, out, err = cli("run", "m", "ab", "-n", "2")
    assert (code, out) == (0, "he\n") and "cut after 2 tokens" in err


def test_stdin_that_is_not_utf8_is_an_error(cli):
    code, out, err = cli("generate", "m", "-p", "-", stdin=b"ab\xff")
    assert (code, out) == (2, "")
    assert "error: stdin: byte 2 is 0xff" in err


@pytest.mark.parametrize("stdin", [b"", None])
def test_empty_prompt_is_an_error(cli, stdin):
    arguments = ("-p", "") if stdin is None else ("-p", "-")
    code, out, err = cli("generate", "m", *arguments, stdin=stdin or b"")
    assert (code, out) == (2, "")
    assert "the prompt is empty" in err


def test_options_reach_the_model_from_flags_and_environment(cli, monkeypatch):
    assert cli("generate", "m", "-p", "ab", "-n", "3")[1] == "hel\n"
    monkeypatch.setenv("CORTIQ_MAX_TOKENS", "2")
    assert cli("generate", "m", "-p", "ab")[1] == "he\n"
    assert cli("generate", "m", "-p", "ab", "--max-tokens", "4")[1] == "hell\n"
    assert cli("generate", "m", "-p", "ab", "-n", "9", "--stop", "l", "--stop", "o")[1] == "he\n"
    cli("generate", "m", "-p", "ab", "--logit-bias", "5=1.5", "--seed", "3", "-t", "0.5")
    draw = cli.model.executable.batches[0].rows[-1].wants[0]
    assert draw.sampling.logit_bias == {5: 1.5} and draw.sampling.seed == 3


def test_seed_is_reported_when_it_was_drawn(cli):
    assert cli("generate", "m", "-p", "ab", "-t", "1")[2].startswith("seed: ")
    assert cli("generate", "m", "-p", "ab", "-t", "1", "--seed", "3")[2] == ""


def test_stats_go_to_stderr(cli):
    code, out, err = cli("generate", "m", "-p", "ab", "--stats")
    assert (code, out) == (0, "hello\n")
    assert (
        "prompt 2 tokens" in err
        and "decode 5 tokens" in err
        and "after the first" in err
        and "peak memory" in err
    )


def test_full_context_is_said(cli):
    code, _, err = cli("generate", "m", "-p", "x" * 62, prompt="x" * 62)
    assert code == 0 and "context of 64 tokens is full" in err


def test_chat_without_a_template_says_base_model(cli):
    code, out, err = cli("generate", "m", "-p", "ab", "--chat")
    assert (code, out) == (2, "")
    assert "no chat template: it is a base model" in err


def test_chat_renders_system_message_and_options(cli):
    from cortiq.tokenizer.tokenizer import byte_tokenizer

    tokenizer = byte_tokenizer(258)
    tokenizer.chat_templates["default"] = (
        "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}{{ mood }}"
    )
    code, _, err = cli(
        "generate", "m", "-p", "hi", "--chat", "--system", "be", "--template-option",
        'mood="calm"', "-n", "1", tokenizer=tokenizer,
    )  # fmt: skip
    assert code == 0, err
    assert bytes(cli.model.executable.fed) == b"[system:be][user:hi]calm"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", "m", "-p", "ab", "--system", "x"], "need --chat"),
        (["generate", "m", "-p", "ab", "--template-option", "a=1"], "need --chat"),
        (["generate", "m", "-p", "ab", "--chat", "--template-option", "a"], "not NAME=JSON"),
        (["generate", "m", "-p", "ab", "--chat", "--template-option", "a={"], "not NAME=JSON"),
        (
            ["generate", "m", "-p", "ab", "--temperature", "-1"],
            "--temperature must be a finite",
        ),
        (["generate", "m", "-p", "ab", "--max-tokens", "x"], "not a valid integer"),
        (["generate", "m", "-p", "ab", "--logit-bias", "x"], "ID=VALUE"),
        (["generate", "m", "-p", "x" * 65], "the context is 64"),
        (["generate", "m", "-p", "ab", "--stop", ""], "--stop: a stop string is empty"),
        (["generate", "m", "-p", "ab", "--stop-ids", "999"], "--stop-ids: token id 999"),
        (["generate", "m", "-p", "ab", "--logit-bias", "999=1"], "--logit-bias: token id 999"),
        (["generate", "m", "-p", "ab", "--draft-depth", "3"], "--draft-depth: a draft depth"),
        (["generate", "m", "--ids", "1,b"], "'b' is not a token id"),
        (["generate", "m", "--ids", "-1"], "'-1' is not a token id"),
        (["generate", "m", "--ids", "9" * 5000], "is not a token id"),
        (["generate", "m", "--ids", " , "], "no token ids"),
        (["generate", "m", "--ids", "99999"], "outside the vocabulary"),
        (["generate", "m", "--ids", "1", "-p", "ab"], "give either -p or --ids"),
        (["generate", "m", "--ids", "1", "--chat"], "--chat: a chat template"),
        (["generate", "m"], "missing argument"),
        (["score", "m", "/nowhere/text"], "No such file"),
        (["inspect"], "name a model"),
        (["frobnicate"], "no such command"),
        (["generate", "m", "-p", "ab", "--frobnicate"], "no such option"),
    ],
)
def test_user_errors_exit_with_2_and_a_sentence(cli, arguments, message):
    code, out, err = cli(*arguments)
    assert (code, out) == (2, "")
    assert message in err and "Traceback" not in err


@pytest.mark.parametrize("template", ["{{ messages }}", None])
def test_a_terminal_is_told_of_a_chat_template(cli, monkeypatch, template):
    def load(*_, **__):
        model = scripted_model("hello")
        model.tokenizer.chat_templates = {"default": template} if template else {}
        return model

    monkeypatch.setattr("cortiq.cli.generate.load_model", load)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    _, _, err = cli("generate", "m", "-p", "ab")
    assert ("--chat uses it" in err) == (template is not None)


def test_failed_sequence_exits_with_2(cli):
    code, _, err = cli("generate", "m", "-p", "ab", failing=[1])
    assert code == 2 and "error: position 1: the sequence met a value outside" in err


def test_unknown_model_and_backend_exit_with_2():
    done = run("generate", "no-such-model", "-p", "x")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: ") and "smollm2" in done.stderr
    done = run("generate", "synthetic:tiny-llama", "-p", "x", "--backend", "no-such-backend")
    assert done.returncode == 2 and "no backend is named 'no-such-backend'" in done.stderr


def test_scoring_prints_perplexity_with_its_error(cli, tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("a text of some length, to be scored")
    code, out, _ = cli("score", "m", str(file), "--window", "8", "--windows", "2")
    assert code == 0 and out.startswith("perplexity ") and " ± " in out
    code, out, _ = cli("score", "m", str(file), "--window", "8", "--json")
    made = json.loads(out)
    assert made["tokens"] == 32 == len(made["argmax"]) == len(made["token_nll"])
    assert made["windows"] == 4 and made["bos"] is False
    assert made["unscored"] == 2


def test_scoring_says_what_was_left_out(cli, tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("0123456789")
    _, out, _ = cli("score", "m", str(file), "--window", "6")
    assert out.splitlines()[2:] == [
        "1 window of 6 tokens, without start token", "3 tokens at the end not scored",
    ]  # fmt: skip
    _, out, _ = cli("score", "m", str(file), "--window", "9")
    assert "not scored" not in out
    file.write_text("")
    code, _, err = cli("score", "m", str(file))
    assert code == 2 and err.startswith("error: the text is empty")


def test_seed_is_null_where_nothing_is_drawn(cli):
    assert json.loads(cli("generate", "m", "-p", "ab", "--json", "--seed", "3")[1])["seed"] is None
    arguments = ("generate", "m", "-p", "ab", "--json", "--seed", "3", "-t", "1")
    assert json.loads(cli(*arguments)[1])["seed"] == 3


def test_note_is_in_the_json(cli):
    _, out, _ = cli("generate", "m", "-p", "x" * 62, "--json", prompt="x" * 62)
    assert "context of 64 tokens is full" in json.loads(out)["note"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generat", "m"], "Did you mean 'generate'?"),
        (["generate", "m", "--promt", "x"], "Did you mean '--prompt'?"),
        (["generate", "m", "-p", "x", "--temp", "0"], "Did you mean --temperature?"),
        (["generate", "m", "-p", "x", "--n-predict", "3"], "Did you mean --max-tokens?"),
        (["generate", "-m", "smollm2", "-p", "x"], "without a flag: cortiq generate MODEL ..."),
        (["serve", "--model", "smollm2"], "without a flag: cortiq serve "),
        (["conform", "--plugin", "x.py"], "before the command: cortiq --plugin ... conform"),
        (["--plugin", "nosuch.py", "backends"], "error: --plugin nosuch.py: there is no such file"),
    ],
)
def test_mistyped_commands_and_options_say_what_was_meant(cli, arguments, message):
    code, out, err = cli(*arguments)
    assert (code, out) == (2, "") and message in err


def test_traceback_is_shown_when_asked_for(tmp_path):
    file = tmp_path / "oops.py"
    file.write_text(
        "from cortiq.hookspecs import hookimpl\n"
        "from cortiq.backend import Device, Versions\n"
        "class Oops:\n"
        "    name, priority, versions = 'oops', -9, Versions()\n"
        "    def devices(self): return [Device('one')]\n"
        "    def supports(self, node, graph, program): raise ValueError('oops')\n"
        "    def compile(self, program, weights, options): ...\n"
        "@hookimpl\ndef cortiq_backends(): return [Oops()]\n"
    )
    call = ("--plugin", str(file), "generate", "synthetic:tiny-llama", "-p", "x", "-b", "oops")
    done = run(*call)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert done.stderr.startswith("error: backend oops failed: ValueError: oops\n  `cortiq --tra")
    done = run("--traceback", *call)
    assert done.returncode == 2 and "raise ValueError('oops')" in done.stderr


def test_help_names_the_variables_of_the_environment():
    text = run("--help").stdout
    assert all(name in text for name in ("CORTIQ_CACHE", "CORTIQ_PLUGINS", "CORTIQ_BACKEND"))


def test_pull_prints_the_licence_every_time(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("cortiq.formats.fetch.pull", lambda name, **options: tmp_path)
    with pytest.raises(SystemExit) as exit:
        main(["pull", "gemma3-270m"])
    out, err = capsys.readouterr()
    assert exit.value.code == 0 and out == f"{tmp_path}\n"
    assert err == "gemma3-270m: licence Gemma Terms of Use\n"


@pytest.mark.parametrize("backend", ["reference", "halves"])
def test_inspect_counts_the_nodes_that_generate_reports(backend, tmp_path):
    file = tmp_path / "halves.py"
    file.write_text(HALVES)
    start, model = ("--plugin", str(file)), "synthetic:tiny-llama"
    shown = run(*start, "inspect", model, "-b", backend).stdout
    made = run(*start, "generate", model, "-b", backend, "-p", "ab", "-n", "1", "--json").stdout
    (line,) = [line for line in shown.splitlines() if line.startswith("placement on ")]
    listed = line.partition(": ")[2].split(", ")
    counts = {name: int(count) for name, count, _ in map(str.split, listed)}
    assert counts == json.loads(made)["placement"]
    assert backend == "reference" or len(counts) == 2


HALVES = """
from cortiq.backend import Declined, Device, Supported, Versions
from cortiq.hookspecs import hookimpl
from cortiq_reference.backend import ReferenceBackend


class Halves(ReferenceBackend):
    name, priority = "halves", -9

    def supports(self, node, graph, program):
        if node.op.kind == "RMSNorm":
            return Declined("not written yet")
        return super().supports(node, graph, program)

    def compile(self, program, weights, options):
        executable = super().compile(program, weights, options)
        for index, node in enumerate(executable.placement):
            executable.placement[node] = "halves" if index % 2 else "reference"
        return executable


@hookimpl
def cortiq_backends():
    return [Halves()]
"""

SLOW = """
import sys, time
sys.path.insert(0, {folder!r})
import cortiq
from scripted import scripted_model
model = scripted_model(lambda position: 120)
plain = model.executable.logits
def slow(position):
    time.sleep(0.02)
    return plain(position)
model.executable.logits = slow
cortiq.load = lambda name, **options: model
cortiq.formats.fetch.check_there = lambda name: None
from cortiq.cli.main import main
main(["generate", "m", "-p", "ab", *sys.argv[1:]])
"""


def start_slow(*arguments):
    script = SLOW.format(folder=os.path.dirname(__file__))
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    # A job in the background ignores interrupts, and its children with it.
    heed = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.default_int_handler)}
    return subprocess.Popen([sys.executable, "-c", script, *arguments], **pipes, **heed)


def test_interrupt_exits_with_130_and_no_traceback():
    process = start_slow()
    assert process.stdout.read(1) == b"x"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 130
    assert err.strip() == b""


def test_interrupt_says_that_no_receipt_was_written(tmp_path):
    file = tmp_path / "r.json"
    process = start_slow("--receipt", str(file))
    assert process.stdout.read(1) == b"x"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 130 and list(tmp_path.iterdir()) == []
    assert f"{file}: interrupted: no receipt was written" in err.decode()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", "m", "-p", "ab", "--draft", "none"], "--draft: there is no drafter 'none'"),
        (["generate", "m", "-p", "ab", "--draft", "model"], "--draft: the drafter model takes"),
        (["generate", "m", "-p", "ab", "--draft-depth", "3"], "--draft-depth: a draft depth"),
        (["generate", "m", "-p", "ab", "--stop", ""], "--stop: a stop string is empty"),
        (["bench", "m", "--draft", "none"], "--draft: there is no drafter 'none'"),
    ],
)
def test_options_that_no_model_could_serve_are_refused_before_one_is_opened(
    cli, monkeypatch, arguments, message
):
    def opened(*_, **__):
        raise AssertionError("a model was opened")

    monkeypatch.setattr(cortiq, "load", opened)
    monkeypatch.setattr("cortiq.model.load.load", opened)
    code, out, err = cli(*arguments)
    assert (code, out) == (2, "") and message in err


def test_closed_pipe_is_quiet():
    process = start_slow()
    assert process.stdout.read(1) == b"x"
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(timeout=HANG_SECONDS) == 141
    assert err == b""


def test_backends_lists_the_reference():
    done = run("backends", "--json")
    assert done.returncode == 0
    found = json.loads(done.stdout)["backends"]
    assert {"reference"} <= {backend["name"] for backend in found}
    lines = run("backends").stdout.splitlines()
    assert any(re.match(r"reference +cpu +NumPy", line) for line in lines)
    assert re.split(" {2,}", lines[0]) == [
        "backend", "device", "description", "priority", "contract", "from",
    ]  # fmt: skip


def test_plugin_file_brings_a_command(tmp_path):
    file = tmp_path / "shout.py"
    file.write_text(
        "import click\nfrom cortiq.hookspecs import hookimpl\n"
        "@click.command()\ndef shout():\n    click.echo('HEY')\n"
        "@hookimpl\ndef cortiq_commands():\n    return [shout]\n"
    )
    done = run("--plugin", str(file), "shout")
    assert (done.returncode, done.stdout) == (0, "HEY\n"), done.stderr


def test_plugin_file_that_does_not_load_is_named(tmp_path):
    file = tmp_path / "broken.py"
    file.write_text("import nothing_of_this_name\n")
    done = run("--plugin", str(file), "shout")
    assert done.returncode == 2
    assert done.stderr.startswith("error: --plugin broken: ") and "nothing_of_this" in done.stderr
    for command in (["backends"], ["list"], ["doctor", "--no-trial"]):
        done = run("--plugin", str(file), *command)
        assert (done.returncode, done.stdout) == (2, ""), done.stdout
        assert done.stderr.startswith("error: --plugin broken: ")


def test_families_are_listed():
    done = run("inspect", "--families")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    rows = {tuple(re.split(" {2,}", line)) for line in lines}
    assert ("family", "architectures", "in GGUF") in rows
    assert {
        ("llama", "llama, mistral, internlm3, iquestcoder", "llama"),
        ("gemma3", "gemma3, gemma3_text, gemma-embedding", "gemma3, gemma-embedding"),
    } <= rows
    assert {line[: lines[0].index("architectures")][-2:] for line in lines} == {"  "}


def test_harness_that_is_not_installed_is_said(monkeypatch, capsys):
    from cortiq.cli import kit

    monkeypatch.setattr(kit, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as exit:
        main(["conform", "--backend", "reference"])
    assert exit.value.code == 2
    assert re.search("pip install -e .*conformance", capsys.readouterr().err)


def test_an_empty_prompt_from_a_pipe_is_an_error_and_not_silence(cli):
    for command in ("run", "generate"):
        code, out, err = cli(command, "m", stdin=b"")
        assert (code, out) == (2, "") and ("prompt is empty" in err or "missing argument" in err)


def test_answers_that_repeat_themselves_end_and_say_so(cli):
    looped = "x" * ANSWER_DEFAULTS["loop_tokens"] + "\n"
    code, out, err = cli("run", "m", "ab", answer="x" * 200, context=1024)
    assert (code, out) == (0, looped) and "repeats itself" in err
    code, out, err = cli("run", "m", "ab", "--loop-tokens", "0", answer="x" * 200, context=1024)
    assert (code, out) == (0, "x" * 200 + "\n") and err == ""
    code, out, _ = cli("generate", "m", "ab", answer="x" * 200, context=1024)
    assert (code, out) == (0, "x" * 200 + "\n")  # a program gets what it asks for


def test_a_continuation_is_shorter_than_an_answer_unless_more_is_asked_for(cli):
    text = "".join(chr(97 + n * n % 23) for n in range(400))
    details = {"answer": text, "context": 1024}
    code, out, err = cli("run", "m", "ab", "--loop-tokens", "0", **details)
    assert (code, out) == (0, text[:256] + "\n") and "cut after 256 tokens" in err
    code, out, err = cli("run", "m", "ab", "--loop-tokens", "0", "-n", "300", **details)
    assert (code, out) == (0, text[:300] + "\n")
    tokenizer = byte_tokenizer(VOCABULARY)
    tokenizer.chat_templates["default"] = "{{ messages[-1].content }}"
    code, out, _ = cli("run", "m", "ab", "--loop-tokens", "0", tokenizer=tokenizer, **details)
    assert (code, out) == (0, text + "\n")


def test_a_reference_that_nobody_chose_is_explained(monkeypatch, capsys):
    from cortiq import plugins
    from cortiq.cli.generate import _note_slowness

    monkeypatch.delenv("CORTIQ_BACKEND", raising=False)
    monkeypatch.setattr(plugins, "availability", lambda backend: ((), "no compiler\n  get one"))
    for backend, words in (("reference", "slow: cpu: no compiler ("), ("cpu", "")):
        _note_slowness(SimpleNamespace(backend=backend))
        said = capsys.readouterr().err
        assert words in said and bool(said) == bool(words)
    monkeypatch.setenv("CORTIQ_BACKEND", "reference")
    _note_slowness(SimpleNamespace(backend="reference"))
    assert capsys.readouterr().err == ""


def test_a_chat_takes_options_as_they_are_on_the_command_line(cli):
    lines = b"/set --max-tokens 7\n/set max-tokens\n"
    tokenizer = byte_tokenizer(VOCABULARY)
    tokenizer.chat_templates["default"] = "{{ messages[-1].content }}"
    code, _, err = cli("chat", "m", stdin=lines, tokenizer=tokenizer)
    assert code == 0 and "max_tokens 7" in err.splitlines()


def test_without_a_command_the_help_is_shown(cli):
    code, out, err = cli()
    assert code == 2 and (out + err).startswith("Usage: cortiq") and "error" not in (out + err)[:20]


def test_errors_of_arguments_look_like_all_others(cli):
    for arguments in (["run"], ["run", "m", "--frobnicate"], ["frobnicate"], ["list", "x"]):
        code, out, err = cli(*arguments)
        first, hint = err.splitlines()
        assert (code, out) == (2, "") and re.match("error: [a-z]", first)
        assert re.match("  cortiq.* --help (shows its arguments|lists its commands)", hint)


LATE = """
import os, signal, sys, atexit
signal.signal(signal.SIGINT, signal.default_int_handler)
atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))
sys.argv = ["cortiq", "list", "--json"]
from cortiq.cli.main import main
main()
"""


def test_an_interrupt_after_the_command_has_ended_changes_nothing():
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "" and json.loads(done.stdout)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no such permissions there")
def test_a_history_that_cannot_be_kept_is_a_warning(tmp_path, monkeypatch, capsys):
    from cortiq.cli.chat import _history_file

    (tmp_path / "file").touch()
    monkeypatch.setenv("CORTIQ_CACHE", str(tmp_path / "file" / "cache"))
    assert _history_file() is None and "are not kept" in capsys.readouterr().err
    monkeypatch.setenv("CORTIQ_CACHE", str(tmp_path / "cache"))
    assert _history_file() == tmp_path / "cache" / "chat-history"
    assert capsys.readouterr().err == ""
