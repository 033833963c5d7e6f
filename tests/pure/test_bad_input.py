"""Mistakes of users on the command line and in Python give sentences, never tracebacks."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from work import HANG_SECONDS

import cortiq
from cortiq.cli.inputs import argument_text, read_text, template_options
from cortiq.errors import (
    CortiqError,
    DownloadError,
    ModelNotFoundError,
    RequestError,
    UnsupportedError,
    shown,
)
from cortiq.formats.cache import models_folder
from cortiq.formats.fetch import resolve
from cortiq.models.synthetic import open_synthetic
from cortiq.options import GenerateOptions, LoadOptions

TINY = "synthetic:tiny-llama"
RUN = [sys.executable, "-m", "cortiq", "generate", TINY, "-n", "2", "-p"]


def shell(redirection: str, prompt: str = "hi") -> subprocess.CompletedProcess[str]:
    """The command line with streams as a shell would set them up."""
    line = f'exec "$@" {redirection}'
    return subprocess.run(
        ["sh", "-c", line, "sh", *RUN, prompt], capture_output=True, text=True, timeout=HANG_SECONDS
    )


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
@pytest.mark.parametrize(
    ("redirection", "prompt", "words"),
    [
        (">&-", "hi", "stdout: is closed"),
        ("<&-", "-", "stdin: is closed"),
        (">/dev/full", "hi", "output: No space left on device"),
        ("2>/dev/full >&2", "hi", ""),
        (">&- 2>&-", "hi", ""),
    ],
)
def test_streams_that_cannot_be_used_are_a_sentence(redirection, prompt, words):
    done = shell(redirection, prompt)
    assert done.returncode == CortiqError.exit_code
    assert words in done.stderr and "Traceback" not in done.stderr


def test_a_closed_stderr_disturbs_nothing():
    done = shell("2>&-")
    assert done.returncode == 0 and done.stdout


def test_no_home_is_a_sentence(monkeypatch):
    monkeypatch.setenv("CORTIQ_CACHE", "~there-is-no-such-user/cache")
    with pytest.raises(DownloadError, match="CORTIQ_CACHE"):
        models_folder()


def test_an_empty_name_is_not_the_folder_we_are_in(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFoundError):
        resolve("")


@pytest.mark.parametrize("query", ["seed=" + "9" * 5000, "seed=٣", "seed=1&seed=2", "seed=-1"])
def test_synthetic_options_that_mean_nothing_are_refused(query):
    with pytest.raises(RequestError):
        open_synthetic(f"{TINY}?{query}")


HUGE = 10**5000
"""Python converts it neither to a string nor to a float."""


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": HUGE}, {"temperature": float("nan")}, {"temperature": -1}, {"seed": HUGE},
        {"seed": np.array([1, 2])}, {"max_tokens": 0}, {"max_tokens": True}, {"top_p": 2.0},
        {"stop": b"x"}, {"stop_ids": [np.zeros(2)]}, {"logit_bias": {-1: 0.0}},
        {"logit_bias": {1: float("inf")}}, {"logit_bias": {HUGE: HUGE}},
    ],
    ids=lambda options: next(iter(options)),
)  # fmt: skip
def test_option_values_that_mean_nothing_name_the_option(options):
    with pytest.raises(RequestError) as caught:
        GenerateOptions(**options)
    assert next(iter(options)) in str(caught.value)


def test_threads_have_a_bound_and_an_empty_backend_is_none():
    with pytest.raises(RequestError, match="at most 1024"):
        LoadOptions(threads=10**9)
    with pytest.raises(CortiqError, match="no backend is named ''"):
        cortiq.load(TINY, backend="")


@pytest.fixture(scope="module")
def model():
    with cortiq.load(TINY, context=16) as opened:
        yield opened


@pytest.mark.parametrize(
    "prompt", ["", [], [-1], [320], [HUGE], [True], [1.5], ["a"], [None], [np.array([1, 2])],
               [1] * 17, [1] * 16, 5, None, b"bytes", "\ud800"],
    ids=lambda prompt: shown(prompt, 20),
)  # fmt: skip
def test_prompts_that_cannot_be_served_are_refused(prompt, model):
    with pytest.raises(CortiqError):
        model.generate(prompt, max_tokens=1)
    assert model.generate([1], max_tokens=1).token_ids  # and nothing is left behind


@pytest.mark.parametrize("name", ["logit_bias", "stop_ids"])
def test_ids_of_options_are_checked_against_the_vocabulary(name, model):
    value = {10**6: 1.0} if name == "logit_bias" else [10**6]
    with pytest.raises(RequestError, match="outside the vocabulary"):
        model.generate([1], **{name: value})


def test_arguments_are_utf8_whatever_the_locale_made_of_them():
    as_ascii_locale = "é∑".encode().decode("ascii", "surrogateescape")
    assert argument_text(as_ascii_locale, "-p") == argument_text("é∑", "-p") == "é∑"
    with pytest.raises(RequestError, match=r"-p: byte 0 is 0xff"):
        argument_text("\udcff", "-p")


@pytest.mark.parametrize("value", ["9" * 5000, "[" * 50_000, "{", "", "nan!"])
def test_template_options_are_json_of_any_kind_or_refused(value):
    with pytest.raises(RequestError, match="NAME=JSON"):
        template_options((f"name={value}",))


@pytest.mark.parametrize("place", ["", ".", "a\0b", "x" * 5000])
def test_places_that_hold_no_text_are_refused(place):
    with pytest.raises(RequestError):
        read_text(place)


@pytest.mark.parametrize("place", ["/dev/zero", "-"])
def test_texts_without_an_end_are_read_to_a_limit(place, monkeypatch):
    """Pipes are texts, too, so that a file's size says nothing."""
    monkeypatch.setattr("cortiq.formats.given_files.MAX_TEXT_BYTES", 1 << 16)
    with open("/dev/zero") as endless:
        monkeypatch.setattr("sys.stdin", endless)
        with pytest.raises(RequestError, match="the text has more than 65536 bytes"):
            read_text(place)


def test_what_is_shown_of_foreign_values_is_short():
    class Rude:
        def __repr__(self):
            raise RuntimeError

    assert len(shown("x" * 1000)) == 80
    assert shown(HUGE) == "a int that cannot be shown" and "Rude" in shown(Rude())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda model: model.generate([1], masks=5), "masks is a function of the ids"),
        (lambda model: model.verify("r.json"), "expected a receipt"),
        (lambda model: cortiq.verify(5, model), "a receipt or the name of its file"),
    ],
)
def test_a_value_of_another_kind_is_a_sentence(call, words):
    with (
        cortiq.load(TINY, backend="reference", threads=1) as model,
        pytest.raises(RequestError, match=words),
    ):
        call(model)


def test_an_architecture_that_is_not_there_is_told_what_is_alike(tmp_path):
    for name, words in (("qwen33", "did you mean qwen3"), ("xyzzy", "inspect --families")):
        (tmp_path / "config.json").write_text(f'{{"model_type": "{name}"}}')
        (tmp_path / "model.safetensors").write_bytes(b"\2" + b"\0" * 7 + b"{}")
        with pytest.raises(UnsupportedError, match=words):
            cortiq.load(tmp_path)
