"""Sounds in prompts from the command line, in conversations, over HTTP and in receipts."""

from __future__ import annotations

import base64
import io
import json
import sys
import urllib.error
import urllib.request
import wave
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("transformers")
pytest.importorskip("starlette")

import numpy as np
import spoken_folders

import cortiq
from cortiq.cli.main import cli
from cortiq.convert.run import convert_model
from cortiq.errors import RequestError
from cortiq.options import LoadOptions
from cortiq.serve.log_replay import replay_log

sys.path.append(str(Path(__file__).parents[1] / "pure"))
from serving import Server

GREEDY = {"temperature": 0, "seed": 1}
EXACT = {"temperature": 0, "max_tokens": 5}


def wav(hertz=400.0):
    """A file of a quarter of a second."""
    at = np.arange(4000) / 16000
    whole = (np.sin(2 * np.pi * hertz * at) * 12000).astype("<i2")
    data = io.BytesIO()
    with wave.open(data, "wb") as file:
        file.setparams((1, 2, 16000, len(whole), "NONE", ""))
        file.writeframes(whole.tobytes())
    return data.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("folder") / "hears"
    place.mkdir()
    spoken_folders.qwen2_audio(place)
    (place.parent / "a.wav").write_bytes(wav())
    (place.parent / "b.wav").write_bytes(wav(900.0))
    return place


def said(*sounds):
    parts = [{"audio": sound} for sound in sounds]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "what?"}]}]


@pytest.fixture(scope="module")
def expected(folder):
    """Texts of a sound and a text, and of the text alone."""
    with cortiq.load(folder, backend="cpu", threads=1) as model:
        return [model.chat(given, **EXACT).text for given in (said(wav()), said())]


def test_the_command_line_gives_what_python_gives(folder, expected):
    how = ["--backend", "cpu", "--threads", "1", "--max-tokens", "5", "--temperature", "0"]
    audio = ["--audio", str(folder.parent / "a.wav"), "-p", "what?"]
    done = CliRunner().invoke(cli, ["generate", str(folder), *audio, "--chat", *how, "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["text"] == expected[0] != expected[1]
    with cortiq.load(folder, backend="cpu", threads=1) as model:
        prompt = model.audio_prompt("what?", [folder.parent / "a.wav"])
        raw = model.generate(prompt, **EXACT).text
    done = CliRunner().invoke(cli, ["generate", str(folder), *audio, *how, "--json"])
    assert json.loads(done.stdout)["text"] == raw


def test_a_conversion_keeps_the_encoder(folder, expected, tmp_path):
    made = convert_model(str(folder), tmp_path / "out", "keep")
    assert made.notes == ()
    with cortiq.load(made.path, backend="cpu", threads=1) as model:
        assert model.chat(said(wav()), **EXACT).text == expected[0]


def test_a_conversation_hears(folder, expected):
    with cortiq.load(folder, backend="cpu", threads=1) as model:
        talk = cortiq.Conversation(model, **EXACT)
        assert talk.ask("what?", sounds=[folder.parent / "a.wav"]).text == expected[0]
        assert "audio" in talk.messages[0]["content"][0]
        talk.ask("and?")


def test_receipts_hold_the_sounds(folder, tmp_path):
    files = [str(folder.parent / name) for name in ("a.wav", "b.wav")]
    with cortiq.load(folder, backend="cpu", threads=1) as model:
        made = model.chat(said(*files), **EXACT)
        made.receipt().write(tmp_path / "r.json")
        receipt = cortiq.Receipt.read(tmp_path / "r.json")
        assert len(receipt.claim.images) == 2
        assert model.verify(receipt, audio=files).identical
        (found,) = model.verify(receipt, audio=files[::-1]).differences
        assert found.field == "images"
        with pytest.raises(RequestError, match="about 2 sounds, 0 are given"):
            model.verify(receipt)
    lacking = CliRunner().invoke(cli, ["verify", str(tmp_path / "r.json"), str(folder)]).exception
    assert isinstance(lacking, RequestError), lacking
    assert "about 2 sounds, 0 are given" in str(lacking) and "--audio FILE" in lacking.hint
    how = [flag for file in files for flag in ("--audio", file)]
    done = CliRunner().invoke(cli, ["verify", str(tmp_path / "r.json"), str(folder), *how])
    assert done.exit_code == 0, done.output


def test_what_cannot_be_heard_is_refused(folder, tmp_path):
    with cortiq.load(folder, backend="cpu", threads=1) as model:
        with pytest.raises(RequestError, match="too short"):
            model.chat_prompt(said((np.zeros(9, np.float32), 16000)))
        with pytest.raises(RequestError, match="not loaded to see images"):
            model.chat_prompt([{"role": "user", "content": [{"image": "a.png"}]}])
        with pytest.raises(RequestError, match="2 places of sounds for 1 sounds"):
            model.audio_prompt("<|AUDIO|><|AUDIO|>", [wav()])
        with pytest.raises(RequestError, match="no such file"):
            model.audio_prompt("a", [tmp_path / "none.wav"])
        (tmp_path / "a.wav").write_bytes(b"no sound")
        with pytest.raises(RequestError, match=r"a\.wav: the sound cannot be decoded"):
            model.audio_prompt("a", tmp_path / "a.wav")
    unable = pytest.raises(RequestError, match="takes no sounds in prompts")
    with cortiq.load("synthetic:tiny-llama") as model, unable:
        model.audio_prompt("a", [wav()])


def test_sounds_that_the_context_has_no_room_for_are_refused_unheard(tmp_path, monkeypatch):
    """Half an hour of silence is a FLAC of 100 kB, and 29 seconds of work."""
    spoken_folders.voxtral(tmp_path)
    with cortiq.load(tmp_path, backend="cpu", threads=1, context=64) as model:
        sight = model.senses.of("audio", "")
        (one,) = sight.prepared([wav()])
        assert one.rows == sight.processor.rows_of(4000)
        monkeypatch.setattr(sight.processor, "prepare", lambda _: pytest.fail("prepared"))
        for given in ([wav(), one, one], [(np.zeros(16000 * 60, np.float32), 16000)]):
            with pytest.raises(RequestError, match="the context has 64 tokens"):
                sight.prepared(reversed(given))


@pytest.fixture(scope="module")
def server(folder):
    log = ("--request-log", str(folder.parent / "requests.log"))
    made = Server(str(folder), "--threads", "1", "--backend", "cpu", *log)
    yield made
    made.stop()


def asked(server, path, **fields):
    data = json.dumps({"model": "hears", **GREEDY, **fields}).encode()
    request = urllib.request.Request(server.url + path, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def part(data=None, kind="wav"):
    encoded = base64.b64encode(wav() if data is None else data).decode()
    return {"type": "input_audio", "input_audio": {"data": encoded, "format": kind}}


def chat(server, *parts):
    messages = [{"role": "user", "content": list(parts)}]
    return asked(server, "/v1/chat/completions", messages=messages, max_tokens=5)


WHAT = {"type": "text", "text": "what?"}


def test_chat_and_responses_give_what_python_gives(server, expected):
    assert chat(server, part(), WHAT)["choices"][0]["message"]["content"] == expected[0]
    content = [part(), {"type": "input_text", "text": "what?"}]
    made = asked(
        server, "/v1/responses", input=[{"role": "user", "content": content}], max_output_tokens=5
    )
    assert made["output"][0]["content"][0]["text"] == expected[0]
    with urllib.request.urlopen(server.url + "/v1/models") as answer:
        (listed,) = json.load(answer)["data"]
    assert listed["audio"] is True and listed["images"] is False


def test_a_log_with_sounds_is_recomputed_where_they_are_given(server, folder):
    """Texts and sounds of one log on another backend; without a sound no answer about it."""
    log = folder.parent / "requests.log"
    files = [str(folder.parent / name) for name in ("a.wav", "b.wav")]
    chat(server, part(), part(wav(900.0)), WHAT)
    chat(server, WHAT)
    options = LoadOptions(backend="reference")
    verdict = replay_log(log, [str(folder)], options, audio=files[::-1])
    assert verdict.differences == [] and verdict.identical >= 2
    partial = replay_log(log, [str(folder)], options, audio=files[:1])
    assert partial.differences and all(
        "sounds that are not given" in s for s in partial.differences
    )
    how = [flag for file in files for flag in ("--audio", file)]
    done = CliRunner().invoke(cli, ["replay", str(log), str(folder), *how, "--backend", "cpu"])
    assert done.exit_code == 0, done.output


def test_an_mp3_is_read(server):
    soundfile = pytest.importorskip("soundfile")
    data, at = io.BytesIO(), np.arange(8000) / 16000
    soundfile.write(data, np.sin(2000 * at) * 0.3, 16000, format="MP3")
    assert chat(server, part(data.getvalue(), "mp3"), WHAT)["choices"][0]["message"]["content"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (part(b"RIFF1234WAVE"), "damaged"),
        (part(kind="pcm16"), "one of wav, mp3"),
        ({"type": "input_audio", "input_audio": {"data": "%%", "format": "wav"}}, "base64"),
        ({"type": "input_audio", "input_audio": {"format": "wav"}}, "an object with data"),
        ({"type": "input_audio"}, "an object with data"),
    ],
)
def test_damaged_sounds_are_an_error_400(server, given, message):
    code, said = chat(server, given, WHAT)
    assert code == 400 and message in said["error"]["message"]
