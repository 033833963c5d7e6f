"""Transcriptions in a request log: facts that decide them, answers, and both computed again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cortiq.errors import RequestError
from cortiq.model.model import Model
from cortiq.model.transcribe import Transcription, TranscriptionJob
from cortiq.numerics.contract import Floats

TRANSCRIBED = "transcribed"
"""How the answer of a whole transcription ended."""


@dataclass(frozen=True)
class LoggedSound:
    """Facts that decide a transcription, but for its options.

    Attributes
    ----------
    sound : digest of the samples at the model's rate, which the log does not hold.
    language : None where the model told. task, timestamps, prompt : as in `TranscriptionJob`.
    """

    sound: str
    language: str | None
    task: str
    timestamps: bool
    prompt: str


def sound_digest(samples: Floats) -> str:
    """Return the SHA-256, in hex, of samples."""
    return hashlib.sha256(np.ascontiguousarray(samples, "<f4").tobytes()).hexdigest()


def sound_of(job: TranscriptionJob) -> LoggedSound:
    """Return what decides a job."""
    given = job.language, job.task, job.timestamps, job.prompt
    return LoggedSound(sound_digest(job.samples), *given)


def read_sound(value: Mapping[str, Any] | None) -> LoggedSound | None:
    """Return what a log's record has of a transcription.

    Raises
    ------
    TypeError : it is none.
    """
    if value is None:
        return None
    texts = {name: value[name] for name in ("sound", "task", "prompt")}
    language, timed = value["language"], value["timestamps"]
    known = all(type(text) is str for text in texts.values())
    if not known or type(language) not in (str, type(None)) or type(timed) is not bool:
        raise TypeError(f"transcription is {value!r}")
    return LoggedSound(language=language, timestamps=timed, **texts)


def answer_of(made: Transcription) -> dict[str, Any]:
    """Return ids, digest and end of a transcription: those of all windows as one."""
    digests = "".join(one.digest for one in made.generations)
    return {
        "token_ids": [token for one in made.generations for token in one.token_ids],
        "digest": hashlib.sha256(digests.encode()).hexdigest(), "finish_reason": TRANSCRIBED,
    }  # fmt: skip


def sounds_by_digest(model: Model, files: Sequence[str]) -> dict[str, str]:
    """Return files of sounds by what is logged of them; none for a model that hears nothing."""
    if model.hearing is None:
        return {}
    return {sound_digest(model.hearing.samples(name)): name for name in files}


def again(
    model: Model, asked: LoggedSound, temperature: float, files: Mapping[str, str]
) -> Transcription:
    """Compute a logged transcription again; RequestError if its sound is not given."""
    if asked.sound not in files:
        hint = "cortiq replay LOG MODEL --audio FILE"
        what = f"it is about a sound that is not given: {asked.sound}"
        raise RequestError(what, where="audio", hint=hint)
    return model.transcribe(
        files[asked.sound], language=asked.language, task=asked.task, prompt=asked.prompt,
        timestamps=asked.timestamps, temperature=temperature,
    )  # fmt: skip
