"""Transcriptions: what is said in a sound of any length, window after window."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

from cortiq.engine.request import Masks, id_list, vocabulary_size
from cortiq.errors import RequestError
from cortiq.hearing.fallback import FallbackRules, WindowScores, compression_ratio, mean_logprob
from cortiq.hearing.speech import TASKS, LanguageMasks, SpeechMasks
from cortiq.model.hearing import Hearing, SoundPrompt
from cortiq.numerics.contract import Floats
from cortiq.numerics.masks import mask_of

if TYPE_CHECKING:
    from cortiq.model.generation import Generation
    from cortiq.model.model import Model

USUAL = {"temperature": 0.0, "max_tokens": 224, "seed": 0, "confidence": True,
         "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}  # fmt: skip
"""Options of a window's generation, where nobody says them: whatever the model's files have."""
FALLBACK = FallbackRules()
LEAST_SECONDS = 1.0
"""Seconds of a window that count as understood, at least: the next one begins after them."""


@dataclass(frozen=True)
class SpokenPart:
    """A part of what is said: seconds of begin and end, text, and ids.

    Attributes
    ----------
    window : number of the window, and of its generation.
    """

    start: float
    end: float
    text: str
    token_ids: tuple[int, ...]
    window: int = 0


@dataclass(frozen=True)
class Transcription:
    """Text of what is said in a sound.

    Attributes
    ----------
    language : its code; empty where the model does not say. task : `transcribe` or `translate`.
    duration : seconds of the sound.
    parts : with times; a window each where none were asked for.
    generations : of each window. scores : of each window's text.
    """

    text: str
    language: str
    task: str
    duration: float
    parts: tuple[SpokenPart, ...]
    generations: tuple[Generation, ...]
    scores: tuple[WindowScores, ...]


Run = Callable[[SoundPrompt, Masks, dict[str, Any]], Generator[None, None, "Generation"]]
"""Generates from a prompt with masks and options; yields None between the steps."""


@dataclass
class TranscriptionJob:
    """One transcription under way.

    Attributes
    ----------
    samples : at the model's rate. language : None to let the model tell.
    timestamps : whether parts have times; of more than a window they have them anyway.
    prompt : text that came before. options : of generating.
    fallback : rules of silence and, where the temperature is 0, of higher ones; None for none.
    """

    model: Model
    samples: Floats
    language: str | None = None
    task: str = TASKS[0]
    timestamps: bool = False
    prompt: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    fallback: FallbackRules | None = FALLBACK

    def __post_init__(self) -> None:
        self.own = hearing_of(self.model)
        self.size = vocabulary_size(self.model.program)
        self.options = {**USUAL, **self.options}
        self.timed = self.timestamps or len(self.samples) > self.own.rules.window
        if self.language is not None or not self.own.speech.languages:
            self._first_ids(self.language)  # refuses a language before anything is computed
        elif self.task not in TASKS:
            self._first_ids(next(iter(self.own.speech.languages)))

    def steps(self, run: Run) -> Generator[SpokenPart | None, None, Transcription]:
        """Yield the parts as they are known, None between steps; return the whole."""
        parts: list[SpokenPart] = []
        made: list[Generation] = []
        scores: list[WindowScores] = []
        language, rules, start = self.language, self.own.rules, 0
        if language is None and self.own.speech.languages:
            language = yield from self.spoken_language(run)
        ids = self._first_ids(language)
        while start < len(self.samples):
            window = self.samples[start : start + rules.window]
            one, found = yield from self._written(run, SoundPrompt(ids, self.own.encoded(window)))
            made.append(one)
            scores.append(found)
            began, length = start / rules.sampling_rate, len(window) / rules.sampling_rate
            pieces, heard = ([], length) if found.silent else self._parted(one.token_ids, length)
            for part in pieces:
                first, last = began + part.start, began + part.end
                parts.append(replace(part, window=len(made) - 1, start=first, end=last))
                yield parts[-1]
            start += round(heard * rules.sampling_rate)
        text, duration = "".join(p.text for p in parts), len(self.samples) / rules.sampling_rate
        known = language or "", self.task, duration
        return Transcription(text.strip(), *known, tuple(parts), tuple(made), tuple(scores))

    def _written(
        self, run: Run, prompt: SoundPrompt
    ) -> Generator[None, None, tuple[Generation, WindowScores]]:
        """Generate a window's text, at higher temperatures where the rules say so."""
        no_speech = yield from self._no_speech(run, prompt)
        rules, given = self.fallback, self.options["temperature"]
        tried = rules.temperatures if rules is not None and given == 0 else (given,)
        for temperature in tried:
            masks = SpeechMasks(self.own.speech, self.size, len(prompt.ids), self.timed)
            made = yield from run(prompt, masks, {**self.options, "temperature": temperature})
            mean = mean_logprob(made.confidence)
            ratio = compression_ratio(self.model.tokenizer.decode(self._words(made.token_ids)))
            silent = rules is not None and rules.silent(mean, no_speech)
            scores = WindowScores(temperature, mean, ratio, no_speech, silent)
            if rules is None or rules.keeps(scores):
                break
        return made, scores

    def _no_speech(self, run: Run, prompt: SoundPrompt) -> Generator[None, None, float]:
        """Return the probability that nothing is said in a window."""
        speech = self.own.speech
        before = prompt.ids[: prompt.ids.index(speech.start) + 1]
        mask = mask_of([speech.no_speech], self.size)
        options, heard = {**USUAL, "max_tokens": 1}, SoundPrompt(before, prompt.encoded)
        made = yield from run(heard, lambda ids: mask, options)
        return made.confidence[0]

    def spoken_language(self, run: Run) -> Generator[None, None, str]:
        """Return the code of the language that the model hears in the first window."""
        speech = self.own.speech
        prompt = SoundPrompt([speech.start], self.own.encoded(self.samples))
        options = {"max_tokens": 1, "temperature": 0.0}
        made = yield from run(prompt, LanguageMasks(speech, self.size), options)
        codes = {token: code for code, token in speech.languages.items()}
        return codes[made.token_ids[0]]

    def _first_ids(self, language: str | None) -> list[int]:
        """Return the ids that the text of a window follows."""
        ids = self.own.speech.prompt(language, self.task, self.timed)
        if self.prompt.strip() and self.own.speech.before is not None:
            text = self.model.tokenizer.encode(" " + self.prompt.strip(), add_bos=False)
            ids = [self.own.speech.before, *text[-(self.model.context // 2 - 1) :], *ids]
        return ids

    def _parted(self, ids: Sequence[int], length: float) -> tuple[list[SpokenPart], float]:
        """Return the parts of a window, and the seconds of it that are understood.

        Parts end where two times meet. What follows the last such place is heard again, in the
        next window; a time alone at the end says that nothing more is said.
        """
        ids = [token for token in ids if token != self.own.speech.end]
        times = [self.own.speech.seconds(token) for token in ids]
        cuts = [n for n, both in enumerate(pairwise(times), 1) if None not in both]
        if not cuts:
            last = next((time for time in reversed(times) if time), length)
            return self._part(0.0, min(last, length), ids), length
        heard = times[cuts[-1] - 1] or 0.0
        if len(times) > 1 and times[-2] is None and times[-1] is not None:
            cuts, heard = [*cuts, len(ids)], length
        found = [
            part
            for begin, end in zip([0, *cuts], cuts, strict=False)
            for part in self._part(
                min(times[begin] or 0.0, length), min(times[end - 1] or 0.0, length), ids[begin:end]
            )
        ]
        return found, min(max(heard, LEAST_SECONDS), length)

    def _words(self, ids: Sequence[int]) -> list[int]:
        """Return the ids that are neither times nor the end."""
        speech = self.own.speech
        return [one for one in ids if speech.seconds(one) is None and one != speech.end]

    def _part(self, begin: float, end: float, ids: Sequence[int]) -> list[SpokenPart]:
        """Return the part that ids make; none where they have no words."""
        words = self._words(ids)
        text = self.model.tokenizer.decode(words)
        return [SpokenPart(begin, end, text, tuple(words))] if words else []


class HearingMixin:
    """The part of `Model` that hears."""

    hearing: Hearing | None

    def sound_prompt(
        self,
        audio: Any,
        prompt: str | Sequence[int] | None = None,
        *,
        language: str = "en",
        task: str = TASKS[0],
        timestamps: bool = False,
    ) -> SoundPrompt:
        """Return what `generate` takes: the first window of a sound, and ids that a text follows.

        Parameters
        ----------
        audio : see `transcribe`.
        prompt : text or ids of the decoder, in place of those of language and task.

        Raises
        ------
        RequestError : the sound cannot be read, or the model transcribes no speech.
        """
        model = cast("Model", self)
        own = hearing_of(model)
        if prompt is None:
            ids = own.speech.prompt(language, task, timestamps)
        elif isinstance(prompt, str):
            ids = model.tokenizer.encode(prompt, add_bos=False, parse_special=True)
        else:
            ids = id_list(prompt)
        return SoundPrompt(ids, own.encoded(own.samples(audio)))

    def transcribe(
        self,
        audio: Any,
        *,
        language: str | None = None,
        task: str = TASKS[0],
        timestamps: bool = False,
        prompt: str = "",
        on_part: Callable[[SpokenPart], None] | None = None,
        fallback: FallbackRules | None = FALLBACK,
        **options: Any,
    ) -> Transcription:
        """Write down what is said in a sound of any length, or translate it to English.

        Parameters
        ----------
        audio : a path, bytes of a file, or a pair of an array and its rate in hertz.
        language : code of the language, as `en`; None to let the model tell.
        timestamps : ask for the times of parts; sounds longer than a window have them anyway,
            since the next window begins where the last part ends.
        prompt : text that came before, for names and style.
        on_part : called with each part as soon as its window is done.
        fallback : as in `TranscriptionJob`.
        options : of `generate`; temperature 0 and seed 0 unless given.

        Raises
        ------
        RequestError : the sound cannot be read, or an option cannot be served.
        """
        model = cast("Model", self)
        samples = hearing_of(model).samples(audio)
        given = language, task, timestamps, prompt, options, fallback
        steps = TranscriptionJob(model, samples, *given).steps(_at_once(model))
        while True:
            try:
                part = next(steps)
            except StopIteration as end:
                return cast(Transcription, end.value)
            if part is not None and on_part is not None:
                on_part(part)


def hearing_of(model: Model) -> Hearing:
    """Return a model's speech encoder; RequestError for a model without one."""
    if model.hearing is None:
        raise RequestError("transcribes no speech", where=model.name, hint="Whisper models do")
    return model.hearing


def _at_once(model: Model) -> Run:
    """Return what generates on an engine of its own, all steps at once."""

    def run(
        prompt: SoundPrompt, masks: Masks, options: dict[str, Any]
    ) -> Generator[None, None, Generation]:
        yield
        return model.generate(prompt, masks=masks, **options)

    return run
