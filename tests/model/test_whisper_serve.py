"""Whisper by command and over HTTP: both give what Python gives; OpenAI's client reads it."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("transformers")
pytest.importorskip("starlette")
pytest.importorskip("openai")

import numpy as np
import openai
import whisper_folders

import cortiq
from cortiq.cli.main import cli
from cortiq.options import LoadOptions
from cortiq.serve.errors import ApiError
from cortiq.serve.form_data import read_form
from cortiq.serve.log_reader import logged_request
from cortiq.serve.log_replay import replay_log

sys.path.append(str(Path(__file__).parents[1] / "pure"))
from serving import Server


def wav(seconds=1.2, hertz=400.0, rate=16000):
    at = np.arange(int(rate * seconds)) / rate
    samples = (np.sin(2 * np.pi * hertz * at) * 9000).astype("<i2").tobytes()
    form = struct.pack("<HHIIHH", 1, 1, rate, 2 * rate, 2, 16)
    data = b"fmt " + struct.pack("<I", 16) + form + b"data" + struct.pack("<I", len(samples))
    return b"RIFF" + struct.pack("<I", 4 + len(data) + len(samples)) + b"WAVE" + data + samples


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("folder") / "hears"
    place.mkdir()
    whisper_folders.whisper(place)
    (place / "a.wav").write_bytes(wav())
    return place


@pytest.fixture(scope="module")
def wanted(folder):
    with cortiq.load(folder, backend="cpu", threads=1) as model:
        return {
            timed: model.transcribe(wav(), language="de", timestamps=timed)
            for timed in (False, True)
        }


@pytest.fixture(scope="module")
def client(folder):
    made = Server(str(folder), "--threads", "1", "--backend", "cpu", "--body-bytes", "200000")
    yield openai.OpenAI(base_url=made.url + "/v1", api_key="none", max_retries=0)
    assert made.stop() == 0


def test_a_transcription_is_in_the_log_and_replays(folder, tmp_path):
    """The log has no sound, so that files are given; most of its seconds are a server's start."""
    log, file, sound = tmp_path / "log", tmp_path / "b.wav", wav(0.7, 300.0)
    file.write_bytes(sound)
    made = Server(str(folder), "--threads", "1", "--backend", "cpu", "--request-log", str(log))
    with openai.OpenAI(base_url=made.url + "/v1", api_key="none", max_retries=0) as to:
        asked(to, "json", temperature=0.1)
        asked(to, "verbose_json", sound, language=openai.omit, prompt="before", temperature=0.5)
    assert made.stop() == 0
    how, names = (
        (log, [str(folder)], LoadOptions(backend="cpu")),
        [str(folder / "a.wav"), str(file)],
    )
    verdict = replay_log(*how, audio=names)
    assert (verdict.identical, verdict.differences, verdict.unanswered) == (2, [], 0)
    verdict = replay_log(*how, audio=[])
    assert verdict.identical == 0 and "a sound that is not given" in verdict.differences[1]
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    answered = [line for line in lines if line["kind"] == "answered"]
    assert answered[0]["finish_reason"] == "transcribed" and len(lines) == 4
    record = next(line for line in lines if line["kind"] == "asked")
    for wrong in ({"sound": 1}, {"language": 3}, {"timestamps": "no"}):
        record["transcription"] |= wrong
        with pytest.raises(TypeError, match="transcription"):
            logged_request(record)


def asked(client, form, data=None, **more):
    more = {"language": "de", **more}
    return client.audio.transcriptions.create(
        model="hears", file=("a.wav", wav() if data is None else data), response_format=form, **more
    )


def test_every_form_is_what_python_gives(client, wanted):
    assert asked(client, "json").text == wanted[False].text
    assert asked(client, "text") == wanted[False].text + "\n"
    whole = asked(client, "verbose_json", timestamp_granularities=["segment"])
    assert whole.text == wanted[True].text and whole.language == "de"
    assert float(whole.duration) == wanted[True].duration
    pairs = zip(whole.segments, wanted[True].parts, strict=True)
    for theirs, ours in pairs:
        assert (theirs.start, theirs.end, theirs.text) == (ours.start, ours.end, ours.text)
        assert theirs.tokens == list(ours.token_ids)
        scores = wanted[True].scores[ours.window]
        assert theirs.avg_logprob == scores.mean_logprob < 0
        assert theirs.no_speech_prob == scores.no_speech and theirs.compression_ratio >= 0
        assert theirs.temperature == scores.temperature


def test_subtitles_have_the_times_of_the_parts(client, wanted):
    lines = asked(client, "srt").splitlines()
    assert len(wanted[True].parts) == sum("-->" in line for line in lines)
    assert asked(client, "vtt").startswith("WEBVTT\n\n00:00:0")


def test_translations_are_another_task(client, folder):
    made = client.audio.translations.create(model="hears", file=("a.wav", wav()))
    with cortiq.load(folder, backend="cpu", threads=1) as model:
        assert made.text == model.transcribe(wav(), task="translate").text


def test_several_at_once_are_as_alone(client, wanted):
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(3) as pool:
        texts = list(pool.map(lambda _: asked(client, "json").text, range(3)))
    assert set(texts) == {wanted[False].text}


@pytest.mark.parametrize("more, status, said", [
    ({"form": "yaml"}, 400, "response_format"), ({"data": b"no sound"}, 400, "sound"),
    ({"data": wav()[:50]}, 400, "damaged"), ({"language": "xx"}, 400, "language"),
    ({"data": bytes(300_000)}, 413, "larger"), ({"temperature": 3}, 400, "temperature"),
    ({"stream": True}, 400, "stream"), ({"extra_body": {"loud": "yes"}}, 400, "loud"),
    ({"timestamp_granularities": ["word"]}, 400, "timestamp_granularities"),
], ids=str)  # fmt: skip
def test_what_cannot_be_served_is_refused_by_name(client, more, status, said):
    with pytest.raises(openai.APIStatusError, match=said) as refused:
        asked(client, **{"form": "json", **more})
    assert refused.value.status_code == status


@pytest.mark.parametrize("data, kind, status", [
    (b"", "multipart/form-data; boundary=x", 400), (b"{}", "application/json", 415),
    (b"--x\r\n\r\nabc", "multipart/form-data; boundary=x", 400),
    (b"--x\r\n\r\nabc\r\n--x--", "multipart/form-data; boundary=x", 400),
    (b"--x\r\n" * 70 + b"--x--", "multipart/form-data; boundary=x", 400),
    (b"--x--", "multipart/form-data", 415), (b"a", "\r\nmultipart", 415),
], ids=range(7))  # fmt: skip
def test_damaged_forms_are_refused(data, kind, status):
    with pytest.raises(ApiError) as refused:
        read_form(data, kind)
    assert refused.value.status == status


def test_a_form_keeps_every_byte():
    data = bytes(range(256)) * 3 + b"\r\n--y\r\n"
    body = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + data
    (part,) = read_form(body + b"\r\n--x--\r\n", 'multipart/form-data; boundary="x"')
    assert part == ("file", "a", data)


def test_the_command_prints_what_python_gives(folder, wanted):
    def run(*more):
        how = ("--language", "de", "--backend", "cpu", "--threads", "1", *more)
        made = CliRunner().invoke(cli, ["transcribe", str(folder), str(folder / "a.wav"), *how])
        assert made.exit_code == 0, made.output
        return made.stdout

    assert run() == wanted[False].text + "\n"
    found = json.loads(run("--json", "--timestamps"))
    assert [one["temperature"] for one in found["scores"]] == [
        one.temperature for one in wanted[True].scores
    ]
    assert {one["temperature"] for one in json.loads(run("--json", "--no-fallback"))["scores"]} == {
        0
    }
    assert found["digests"] == [one.digest for one in wanted[True].generations]
    assert [part["text"] for part in found["parts"]] == [one.text for one in wanted[True].parts]
    subtitles = run("--format", "vtt")
    assert subtitles.startswith("WEBVTT")
    blocks = [block.split("\n") for block in subtitles.strip().split("\n\n")[1:]]
    lines = "".join(f"[{times}] {text}\n" for times, text in blocks)
    assert blocks and run("--timestamps") == lines
