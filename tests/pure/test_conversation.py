"""Conversations: turns that reuse what was read, and answers that are what they are without."""

from __future__ import annotations

import json
import threading

import pytest
from adapter_folders import write_lora
from click.testing import CliRunner

import cortiq
from cortiq.cli import chat as command
from cortiq.cli.chat_input import read_message
from cortiq.errors import CortiqError, FormatError, RequestError, TokenizerError
from cortiq.model.conversation import Conversation

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)


def tiny(**options):
    model = cortiq.load("synthetic:tiny-llama?seed=2", **options)
    model.tokenizer.chat_templates["default"] = TEMPLATE
    return model


@pytest.fixture
def model():
    with tiny() as made:
        yield made


def said(talk):
    return [m["content"] for m in talk.messages]


def test_every_answer_is_what_the_messages_have_without_any_reuse(model):
    talk = Conversation(model, system="Be short.", max_tokens=8, ignore_eos=True)
    made = [talk.ask(text) for text in ("One", "Two", "Three")]
    assert made[0].stats.reused_tokens == 0
    assert all(one.stats.reused_tokens > 8 for one in made[1:])
    with tiny() as fresh:
        for turn, one in enumerate(made):
            given = talk.shown(talk.messages[: 2 * turn + 1], 0)
            alone = fresh.chat(given, max_tokens=8, ignore_eos=True)
            assert (alone.token_ids, alone.digest) == (one.token_ids, one.digest)
    assert talk.used["answers"] == 3
    assert talk.used["prompt_tokens"] == sum(one.stats.prompt_tokens for one in made)


def test_a_cancelled_answer_stays_and_more_goes_on_from_its_tokens(model):
    talk = Conversation(model, max_tokens=20, ignore_eos=True)
    whole = talk.ask("Go on")
    talk.reset()
    cancel, pieces = threading.Event(), []

    def show(piece):
        pieces.append(piece)
        if len(pieces) == 3:
            cancel.set()

    first = talk.ask("Go on", on_text=show, cancel=cancel)
    assert first.finish_reason == "cancelled"
    assert said(talk) == ["Go on", first.text]
    second = talk.more()
    ids = first.token_ids + second.token_ids
    assert ids[: len(whole.token_ids)] == whole.token_ids
    assert said(talk) == ["Go on", first.text + second.text]


def test_nothing_is_gone_on_with_where_nothing_was_cut(model):
    talk = Conversation(model)
    for act in (talk.more, talk.undo):
        with pytest.raises(RequestError):
            act()


def test_a_failed_turn_leaves_the_conversation_as_it_was(model):
    talk = Conversation(model, max_tokens=4)
    talk.ask("One")
    before = json.dumps(talk.messages)
    talk.options["max_tokens"] = 0
    with pytest.raises(RequestError, match="max_tokens"):
        talk.ask("Two")
    assert json.dumps(talk.messages) == before


def test_the_oldest_exchange_is_left_out_when_there_is_no_room():
    with tiny(context=256) as model:
        talk = Conversation(model, system="S", max_tokens=16, ignore_eos=True)
        for number in range(8):
            made = talk.ask(f"Message {number} " + "x" * 24)
            assert len(made.prompt_ids) + 16 <= 256
        assert talk.left_out and talk.left_out % 2 == 0
        shown = talk.shown(talk.messages, talk.left_out)
        assert shown[0]["content"] == "S" and shown[1]["role"] == "user"
        assert len(talk.messages) == 16
        with pytest.raises(RequestError, match="context"):
            talk.ask("y" * 300)
        assert len(talk.messages) == 16


def test_undo_reset_save_and_load(model, tmp_path):
    talk = Conversation(model, system="Ünï\ncode \U0001f600", max_tokens=4)
    talk.ask("One")
    talk.ask("Two")
    talk.save(tmp_path / "chat.json")
    other = Conversation(model)
    other.load(tmp_path / "chat.json")
    assert (other.system, other.messages) == (talk.system, talk.messages)
    assert talk.undo() == "Two" and len(talk.messages) == 2
    talk.reset()
    assert talk.messages == [] and talk.system
    assert [path.name for path in tmp_path.iterdir()] == ["chat.json"]


GOOD = {"format": "cortiq-chat", "version": 1, "system": None, "messages": []}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "not JSON"),
        ("[" * 10_000, "not JSON"),
        ("[]", "no conversation"),
        (json.dumps(GOOD | {"format": "x"}), "no conversation"),
        (json.dumps(GOOD | {"version": 2}), "version 2"),
        (json.dumps(GOOD | {"messages": None}), "no messages"),
        (json.dumps(GOOD | {"system": 3}), "no messages"),
        (json.dumps(GOOD | {"messages": [{"role": "boss", "content": "x"}]}), "message 0"),
        (json.dumps(GOOD | {"messages": [{"role": "user", "content": None}]}), "message 0"),
    ],
)
def test_a_file_that_holds_no_conversation_is_refused(model, tmp_path, content, words):
    talk, file = Conversation(model, max_tokens=2), tmp_path / "x.json"
    talk.ask("One")
    before = list(talk.messages)
    file.write_text(content)
    with pytest.raises(FormatError, match=words):
        talk.load(file)
    with pytest.raises(FormatError, match="No such file"):
        talk.load(tmp_path / "none")
    assert talk.messages == before


def test_a_base_model_cannot_chat():
    with (
        cortiq.load("synthetic:tiny-llama") as base,
        pytest.raises(TokenizerError, match="template"),
    ):
        Conversation(base)


class Given:
    """Lines as a person types them."""

    by_hand = True

    def __init__(self, *lines):
        self.lines = list(lines)

    def line(self, prompt):
        return self.lines.pop(0) if self.lines else None


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["one"], "one"),
        (["one\\", "two"], "one\ntwo"),
        (["one\\"], "one\n"),
        (['"""', "one", 'two"""'], "\none\ntwo"),
        (['"""one"""'], "one"),
        (['"""one', "two"], "one\ntwo"),
        (['  """ a', '"""'], " a\n"),
        (["pasted\nlines"], "pasted\nlines"),
        ([], None),
    ],
)
def test_lines_make_a_message(lines, message):
    given = Given(*lines)
    assert read_message(given) == message
    assert given.lines == []


def chatted(monkeypatch, text, *arguments):
    monkeypatch.setattr(command, "load_model", lambda name, options: tiny())
    given = ["synthetic:m", "-n", "6", "--ignore-eos", *arguments]
    return CliRunner().invoke(command.chat, given, input=text.encode())


def test_a_loaded_conversation_shows_where_it_was(monkeypatch, model, tmp_path):
    talk = Conversation(model, max_tokens=3, ignore_eos=True)
    talk.messages = [
        {"role": "user", "content": "first"}, {"role": "assistant", "content": "x" * 500 + "end"},
    ]  # fmt: skip
    talk.save(tmp_path / "talk.json")
    done = chatted(monkeypatch, "", "--load", str(tmp_path / "talk.json"))
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("assistant: ")]
    assert line.startswith("assistant: ... xxx") and line.endswith("xend") and len(line) < 450


def test_from_a_pipe_each_line_is_answered_on_stdout(monkeypatch, model):
    done = chatted(monkeypatch, "One\nTwo\\\nlines\n\n")
    talk = Conversation(model, max_tokens=6, ignore_eos=True)
    answers = [talk.ask(text).text for text in ("One", "Two\nlines")]
    assert done.exit_code == 0, done.output
    assert done.stdout == "".join(f"{answer}\n" for answer in answers)
    assert "cut after 6 tokens" in done.stderr and "tokens/s" not in done.stderr


def test_commands(monkeypatch, tmp_path):
    file = tmp_path / "c.json"
    lines = [
        "/help", "/system Be kind.", "/system", "One", "/stats", "/more", "/retry", "/undo",
        "/set", "/set temperature 0.5", "/set stop a,b", f"/save {file}", "Two", f"/load {file}",
        "/reset", "/quit", "never answered",
    ]  # fmt: skip
    done = chatted(monkeypatch, "\n".join(lines), "--stats")
    assert done.exit_code == 0, done.output
    for words in (
        "/save FILE", "Be kind.", "of them 0 cached; 6 generated", "tokens/s, 0 of ",
        "digest, the same on every backend", "forgotten: One", "temperature 0.5",
        "stop ('a', 'b')", f"0 messages in {file}", f"0 messages of {file}",
    ):  # fmt: skip
        assert words in done.stderr, words
    assert len(done.stdout.splitlines()) >= 4


@pytest.mark.parametrize("named", [False, True])
def test_an_adapter_is_set_and_none_is_none(monkeypatch, tmp_path, named):
    """Unless an adapter is named so."""
    opened = tiny()
    folders = [write_lora(tmp_path / name, opened, seed) for seed, name in enumerate("ab")]
    names = ["a", "none" if named else "b"]
    for name, folder in zip(names, folders, strict=True):
        opened.load_adapter(name, folder)
    talks = [Conversation(opened, max_tokens=6, ignore_eos=True, adapter=n) for n in (*names, None)]
    a, other, plain = (talk.ask("One").text for talk in talks)
    assert len({a, other, plain}) == 3
    monkeypatch.setattr(command, "load_model", lambda name, options: opened)
    lines = "/set adapter a\nOne\n/reset\n/set adapter none\nOne\n"
    given = ["synthetic:m", "-n", "6", "--ignore-eos"]
    done = CliRunner().invoke(command.chat, given, input=lines.encode())
    assert done.exit_code == 0, done.output
    assert done.stdout == f"{a}\n{other if named else plain}\n"


def test_what_comes_after_an_interrupt_is_shown_by_more(model, capsys):
    talk = Conversation(model, max_tokens=20, ignore_eos=True)
    chat, generate = command.ChatSession(talk, None, stats=False), model.generate

    def interrupted(ids, *, on_text, cancel, **options):
        def show(piece):
            if not talk.messages and not cancel.is_set():
                cancel.set()
            on_text(piece)

        return generate(ids, on_text=show, cancel=cancel, **options)

    model.generate = interrupted
    chat.answer("Go on")
    assert capsys.readouterr().out == "\n" and talk.last.finish_reason == "cancelled"
    assert talk.messages[-1]["content"]
    chat.answer(None)
    assert capsys.readouterr().out == talk.messages[-1]["content"] + "\n"


def test_set_without_a_value_shows_the_one_there_is(monkeypatch):
    done = chatted(monkeypatch, "/set seed\n/set temperature\n")
    assert done.exit_code == 0 and "seed is not set\ntemperature 0.0" in done.stderr


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/hlep", "did you mean /help?"),
        ("/set temprature 1", "did you mean 'temperature'?"),
        ("/set temp 0.7", "did you mean 'temperature'?"),
        ("/set xyzzy 0.7", "cortiq chat --help lists the options"),
        ("/retry", "/retry: nothing has been said yet"),
        ("/undo", "/undo: nothing has been said yet"),
        ("/set temperature hot", "not a finite number"),
        ("/save", "needs the name of a file"),
        ("/save /no/such/x.json", "/no/such/x.json: cannot be written: No such file"),
        ("/load /no/such", "No such file"),
        ("/more", "cut short"),
    ],
)
def test_a_wrong_command_ends_a_pipe_with_a_sentence(monkeypatch, line, words):
    done = chatted(monkeypatch, f"{line}\n")
    assert isinstance(done.exception, CortiqError)
    assert words in str(done.exception)
