"""Speech tokens: a model's ids of languages, tasks and times, and which of them may follow."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cortiq.engine.masks import LogitMasks
from cortiq.errors import FormatError, RequestError
from cortiq.numerics.contract import Floats
from cortiq.numerics.masks import Mask, allowed_ids, mask_of
from cortiq.numerics.sampling import log_sum_exp
from cortiq.tokenizer.tokenizer import Tokenizer

START, TRANSCRIBE, TRANSLATE = "<|startoftranscript|>", "<|transcribe|>", "<|translate|>"
NO_TIMES, BEFORE = "<|notimestamps|>", "<|startofprev|>"
TASKS = ("transcribe", "translate")
LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")
TICK = 0.02
"""Seconds between two times."""
LATEST_BEGIN = 50
"""Ticks into a window at which the first text begins at most."""
WHERE = "generation_config.json"


@dataclass(frozen=True)
class SpeechTokens:
    """Ids of a model that writes what is said.

    Attributes
    ----------
    start, before : of the text, and of the text before it (None where it is not read).
    languages : by code; empty for a model of one language. tasks : by name.
    no_times, first_time : that no times follow, and of the time 0.
    end : of the text.
    suppressed, first_suppressed : ids that are never drawn, and never first.
    """

    start: int
    before: int | None
    languages: Mapping[str, int]
    tasks: Mapping[str, int]
    no_times: int
    end: int
    suppressed: tuple[int, ...]
    first_suppressed: tuple[int, ...]

    @property
    def first_time(self) -> int:
        """Id of the time 0: times follow the token that says that there are none."""
        return self.no_times + 1

    @property
    def no_speech(self) -> int:
        """Id whose probability after `start` is that of nothing being said."""
        return self.no_times - 1

    @classmethod
    def of(
        cls, tokenizer: Tokenizer, given: Mapping[str, Any], vocabulary: int, ends: Sequence[int]
    ) -> SpeechTokens:
        """Return the ids of a folder's tokenizer and generation_config.json.

        Raises
        ------
        FormatError : the tokenizer has not the tokens, or the file is not as it should be.
        """
        start, no_times = tokenizer.token_id(START), tokenizer.token_id(NO_TIMES)
        if start is None or no_times is None or not ends:
            raise FormatError(f"the tokenizer has no {START}, {NO_TIMES} or end", where=WHERE)
        named = given.get("lang_to_id")
        languages: dict[str, int] = {}
        for text, token in (named if isinstance(named, Mapping) else {}).items():
            found = LANGUAGE.fullmatch(str(text))
            if found is None or type(token) is not int or not 0 <= token < vocabulary:
                raise FormatError(f"lang_to_id has {text!r}: {token!r}", where=WHERE)
            languages[found[1]] = token
        tasks = {name: tokenizer.token_id(f"<|{name}|>") for name in TASKS if languages}
        keys = ("suppress_tokens", "begin_suppress_tokens")
        never, never_first = (_listed(given, key, vocabulary) for key in keys)
        return cls(
            start, tokenizer.token_id(BEFORE), languages,
            {name: token for name, token in tasks.items() if token is not None},
            no_times, ends[0], never, never_first,
        )  # fmt: skip

    def prompt(self, language: str | None, task: str, times: bool) -> list[int]:
        """Return the ids that a text begins after.

        Raises
        ------
        RequestError : no such language or task, or the model has only one.
        """
        if task not in TASKS:
            raise RequestError(f"no task {task!r}", where="task", hint=" or ".join(TASKS))
        ids = [self.start]
        if self.languages:
            if language is None or language not in self.languages:
                hint = f"it knows {', '.join(sorted(self.languages))}"
                raise RequestError(f"no language {language!r}", where="language", hint=hint)
            ids += [self.languages[language], *self._task(task)]
        elif language not in (None, "en") or task != TASKS[0]:
            what, where = f"the model knows English only, not {language!r}", "language"
            if task != TASKS[0]:
                what, where = "the model knows English only, and does not translate", "task"
            raise RequestError(what, where=where, hint="take a multilingual Whisper model")
        return ids if times else [*ids, self.no_times]

    def _task(self, task: str) -> list[int]:
        return [self.tasks[task]] if task in self.tasks else []

    def seconds(self, token: int) -> float | None:
        """Return the time that a token stands for; None for another one."""
        return (token - self.first_time) * TICK if token >= self.first_time else None


def _listed(given: Mapping[str, Any], key: str, vocabulary: int) -> tuple[int, ...]:
    """Return ids that a file lists; those outside the vocabulary are none."""
    listed = given.get(key) or []
    if not isinstance(listed, list) or not all(type(token) is int for token in listed):
        raise FormatError(f"{key} is {listed!r}", where=WHERE)
    return tuple(token for token in listed if 0 <= token < vocabulary)


@dataclass(frozen=True)
class SpeechMasks(LogitMasks):
    """Says which ids may follow, as Whisper's decoding has it.

    Times stand in pairs, or one before the end, and never go back; a text with times begins with
    one, of the window's first second. Where all times together are more likely than any other
    token, a time follows.

    Attributes
    ----------
    begin : ids of the prompt. timed : whether the text has times.
    """

    speech: SpeechTokens
    vocabulary: int
    begin: int
    timed: bool

    def __call__(self, ids: Sequence[int]) -> Mask:
        """Return the mask of the token after these ids."""
        allowed = np.ones(self.vocabulary, np.bool_)
        drawn, speech = ids[self.begin :], self.speech
        allowed[list(speech.suppressed)] = False
        if not drawn:
            allowed[list(speech.first_suppressed)] = False
        if self.timed:
            self._time(allowed, drawn)
        if not allowed.any():
            allowed[speech.end] = True
        return np.packbits(allowed, bitorder="little").tobytes()

    def narrowed(self, ids: Sequence[int], logits: Floats) -> Mask:
        """Return the mask of the token after these ids, of times where they are more likely."""
        mask = self(ids)
        allowed = allowed_ids(mask, self.vocabulary)
        is_time = allowed >= self.speech.first_time
        if not self.timed or is_time.all() or not is_time.any():
            return mask
        times = log_sum_exp(logits[allowed[is_time]])
        if times <= logits[allowed[~is_time]].max():
            return mask
        return mask_of(allowed[is_time].tolist(), self.vocabulary)

    def _time(self, allowed: np.ndarray, drawn: Sequence[int]) -> None:
        """Forbid times where none can be, and words where none can be."""
        first, end = self.speech.first_time, self.speech.end
        allowed[self.speech.no_times] = False
        if not drawn:
            allowed[:first] = False
            allowed[first + LATEST_BEGIN + 1 :] = False
            return
        times = [token for token in drawn if token >= first]
        closed = len(drawn) < 2 or drawn[-2] >= first
        if drawn[-1] >= first and closed:
            allowed[first:] = False
        elif drawn[-1] >= first:
            allowed[:end] = False
        if times:
            again = drawn[-1] >= first and not closed
            allowed[first : times[-1] + (not again)] = False


@dataclass(frozen=True)
class LanguageMasks:
    """Allows the ids of languages only."""

    speech: SpeechTokens
    vocabulary: int

    def __call__(self, ids: Sequence[int]) -> Mask:
        """Return the mask."""
        allowed = np.zeros(self.vocabulary, np.bool_)
        allowed[list(self.speech.languages.values())] = True
        return np.packbits(allowed, bitorder="little").tobytes()
