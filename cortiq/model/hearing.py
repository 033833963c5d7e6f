"""Hearing of a model: sounds of prompts, and what is said in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from cortiq.engine.prompt_encoded import EncodedPrompt
from cortiq.engine.request import id_list, vocabulary_size
from cortiq.errors import RequestError
from cortiq.hearing.decode import sound_of
from cortiq.hearing.encode import SoundEncoder
from cortiq.hearing.features import PreparedSound
from cortiq.hearing.load import LoadedHearing
from cortiq.hearing.speech import TASKS, LanguageMasks, SpeechMasks, SpeechTokens
from cortiq.hearing.whisper import STRIDE
from cortiq.numerics.contract import Floats

if TYPE_CHECKING:
    from cortiq.model.generation import Generation
    from cortiq.model.model import Model

MOST_TOKENS = 224
"""Tokens of a window, where nobody says how many."""


@dataclass(frozen=True)
class SoundPrompt:
    """Token ids of a prompt, and the window of sound that its rows hear.

    Attributes
    ----------
    encoded : the sound, as the encoder's rows.
    """

    ids: Sequence[int]
    encoded: EncodedPrompt


@dataclass(frozen=True)
class SpokenPart:
    """A part of what is said: seconds of begin and end, text, and ids."""

    start: float
    end: float
    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True)
class Transcription:
    """Text of what is said in a sound.

    Attributes
    ----------
    language : its code; empty where the model does not say. task : `transcribe` or `translate`.
    duration : seconds of the sound.
    segments : parts with times; a window each where none were asked for.
    generations : of each window.
    """

    text: str
    language: str
    task: str
    duration: float
    segments: tuple[SpokenPart, ...]
    generations: tuple[Generation, ...]


class Hearing:
    """The features of a model's sounds, the encoder that makes rows of them, its speech tokens."""

    def __init__(self, loaded: LoadedHearing, encoder: SoundEncoder, speech: SpeechTokens) -> None:
        self.program, self.rules = loaded.program, loaded.rules
        self.encoder, self.speech = encoder, speech

    def samples(self, audio: Any) -> Floats:
        """Return the samples of a sound at the model's rate; RequestError where it has none."""
        return sound_of(audio).at(self.rules.sampling_rate)

    def encoded(self, samples: Floats) -> EncodedPrompt:
        """Return the first window of samples as what rows of a text attend to."""
        return self.of_prepared(self.rules.prepare(samples))

    def of_prepared(self, sound: PreparedSound) -> EncodedPrompt:
        """Return a prepared window as what rows of a text attend to."""
        rows = len(sound.frames) // STRIDE
        return EncodedPrompt(rows, partial(self.encoder.rows, sound), sound.digest)


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
        audio : see `hearing.decode.sound_of`.
        prompt : text or ids of the decoder, in place of those of language and task.

        Raises
        ------
        RequestError : the sound cannot be read, or the model hears nothing.
        """
        model, own = cast("Model", self), _hearing(self)
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
        on_segment: Callable[[SpokenPart], None] | None = None,
        **options: Any,
    ) -> Transcription:
        """Write down what is said in a sound of any length, or translate it to English.

        Parameters
        ----------
        audio : a path, bytes of a file, or a pair of an array and its rate in hertz.
        language : code of the language, as `en`; None to let the model tell.
        timestamps : ask for the times of segments; longer sounds than a window have them anyway,
            since the next window begins where the last segment ends.
        prompt : text that came before, for names and style.
        on_segment : called with each segment as soon as its window is done.
        options : of `generate`; temperature 0 unless given.

        Raises
        ------
        RequestError : the sound cannot be read, or an option cannot be served.
        """
        own, given = _hearing(self), {"temperature": 0.0, "max_tokens": MOST_TOKENS, **options}
        samples = own.samples(audio)
        if language is None and own.speech.languages:
            language = self.spoken_language(samples)
        job = _Job(cast("Model", self), own, samples, language, task, timestamps, prompt, given)
        segments: list[SpokenPart] = []
        for segment in job.segments():
            segments.append(segment)
            if on_segment is not None:
                on_segment(segment)
        text = "".join(segment.text for segment in segments).strip()
        duration = len(samples) / own.rules.sampling_rate
        made = tuple(job.generations)
        return Transcription(text, language or "", task, duration, tuple(segments), made)

    def spoken_language(self, samples: Floats) -> str:
        """Return the code of the language that the model hears in the first window of samples."""
        model, own = cast("Model", self), _hearing(self)
        masks = LanguageMasks(own.speech, vocabulary_size(model.program))
        prompt = SoundPrompt([own.speech.start], own.encoded(samples))
        made = model.generate(prompt, masks=masks, max_tokens=1, temperature=0.0)
        codes = {token: code for code, token in own.speech.languages.items()}
        return codes[made.token_ids[0]]


def _hearing(model: HearingMixin) -> Hearing:
    if model.hearing is None:
        name = cast("Model", model).name
        raise RequestError("the model hears nothing", where=name, hint="Whisper models do")
    return model.hearing


@dataclass
class _Job:
    """One transcription: window after window."""

    model: Model
    own: Hearing
    samples: Floats
    language: str | None
    task: str
    timestamps: bool
    prompt: str
    options: dict[str, Any]

    def __post_init__(self) -> None:
        self.generations: list[Generation] = []
        self.timed = self.timestamps or len(self.samples) > self.own.rules.window
        self.ids = self.own.speech.prompt(self.language, self.task, self.timed)
        if self.prompt and self.own.speech.before is not None:
            text = self.model.tokenizer.encode(" " + self.prompt.strip(), add_bos=False)
            room = self.model.context // 2 - 1
            self.ids = [self.own.speech.before, *text[-room:], *self.ids]

    def segments(self) -> Iterator[SpokenPart]:
        """Yield the segments of all windows; each begins where the last one was understood."""
        start, rules = 0, self.own.rules
        while start < len(self.samples):
            window = self.samples[start : start + rules.window]
            made = self._generate(window)
            self.generations.append(made)
            began, length = start / rules.sampling_rate, len(window) / rules.sampling_rate
            found, heard = self._parted(made.token_ids, length)
            for segment in found:
                yield replace(segment, start=began + segment.start, end=began + segment.end)
            last = start + rules.window >= len(self.samples)
            start += len(window) if last else int(heard * rules.sampling_rate)

    def _generate(self, window: Floats) -> Generation:
        size = vocabulary_size(self.model.program)
        masks = SpeechMasks(self.own.speech, size, len(self.ids), self.timed)
        prompt = SoundPrompt(self.ids, self.own.encoded(window))
        return self.model.generate(prompt, masks=masks, **self.options)

    def _parted(self, ids: Sequence[int], length: float) -> tuple[list[SpokenPart], float]:
        """Return the segments of a window, and the seconds of it that are understood."""
        found: list[SpokenPart] = []
        begin, end, words, heard = 0.0, None, [], length
        for token in ids:
            said = self.own.speech.seconds(token)
            time = 0.0 if said is None else min(said, length)
            if said is None:
                words += [token] if token != self.own.speech.end else []
            elif words:
                found.append(self._segment(begin, time, words))
                begin, end, words, heard = time, time, [], time
            else:
                begin = time
        if words:
            found.append(self._segment(begin, length, words))
            heard = length
        return found, min(max(heard, 1.0), length) if end is not None or words else length

    def _segment(self, begin: float, end: float, words: Sequence[int]) -> SpokenPart:
        return SpokenPart(begin, end, self.model.tokenizer.decode(words), tuple(words))
