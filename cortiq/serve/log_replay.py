"""Recomputation of a request log: every answer again, on any backend, compared to the bit."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path

from cortiq.engine.engine import Engine
from cortiq.engine.request import Request, make_request, vocabulary_size, with_images
from cortiq.engine.sequence import Sequence as EngineSequence
from cortiq.errors import CortiqError, RequestError
from cortiq.formats.known_models import KNOWN_MODELS
from cortiq.model.load import choose_backend, model_of
from cortiq.model.model import Model
from cortiq.model.sight import Senses
from cortiq.model.source import open_source
from cortiq.models.synthetic import PREFIX
from cortiq.numerics.contract import CONTRACT_VERSION
from cortiq.options import LoadOptions
from cortiq.serve.log_reader import LoggedAnswer, LoggedRequest, LogReader
from cortiq.serve.log_transcriptions import LoggedSound, again, answer_of, sounds_by_digest

AT_ONCE = 64
"""Answers that are computed together."""
Files = Mapping[str, tuple[str, str]]
"""Medium and name of a file by the digest of its content as a model takes it."""
LoadedAs = tuple[str, int, str | None, bool]
"""Hash of a model, context, weight format, and whether it sees: one loading for each."""


@dataclass
class LogVerdict:
    """Counts and differences of a replay.

    Attributes
    ----------
    identical, tokens : answers with the same tokens, digests and ends, and their tokens.
    differences : of the others, a sentence each.
    torn : lines that were not whole. unanswered : choices that were asked for and have no answer.
    """

    identical: int = 0
    tokens: int = 0
    differences: list[str] = field(default_factory=list)
    torn: int = 0
    unanswered: int = 0

    def count(self, answer: LoggedAnswer, difference: str) -> None:
        """Count a replayed answer."""
        if difference:
            name = f"{answer.request.id}, choice {answer.choice} ({answer.request.path})"
            self.differences.append(f"{name}: {difference}")
        else:
            self.identical += 1
            self.tokens += len(answer.token_ids)


def replay_log(
    path: Path,
    models: Sequence[str],
    options: LoadOptions,
    progress: Callable[[int, int], None] = lambda done, total: None,
    images: Sequence[str] = (),
    audio: Sequence[str] = (),
) -> LogVerdict:
    """Compute every answer of a log again and compare tokens, digests and ends.

    Parameters
    ----------
    models : files of the models that the log names and that are no known ones.
    progress : called with answers done and in all.
    images, audio : files of the images and of the sounds in its prompts, in any order.

    Raises
    ------
    FormatError : it is no log. RequestError : it has no answers.
    CortiqError : a model is missing or another, or the backend cannot be used: no verdict.
    """
    reader, verdict = LogReader(path), LogVerdict()
    counts = Counter(_loaded_as(answer.request) for answer in reader.answers())
    if not counts:
        raise RequestError("no request of this log has an answer to compare", where=str(path))
    verdict.torn = reader.torn
    verdict.unanswered = sum(len(missing) for _, missing in reader.open.values())
    done = 0
    media = [*(("image", name) for name in images), *(("audio", name) for name in audio)]
    for loaded_as in counts:
        wanted = (a for a in reader.answers() if _loaded_as(a.request) == loaded_as)
        first = next(wanted)
        with _opened(first.request, models, options) as model:
            answers = (a for a in reader.answers() if _loaded_as(a.request) == loaded_as)
            for answer, difference in replayed(model, answers, media):
                verdict.count(answer, difference)
                done += 1
                progress(done, sum(counts.values()))
    return verdict


def _loaded_as(request: LoggedRequest) -> LoadedAs:
    return request.model_hash, request.context, request.weight_format, bool(request.images)


def _opened(asked: LoggedRequest, models: Sequence[str], options: LoadOptions) -> Model:
    """Load the model of a request: one of the given files, or the known model that it names."""
    if asked.contract != CONTRACT_VERSION:
        what = f"the log is of contract {asked.contract}, this cortiq computes {CONTRACT_VERSION}"
        raise RequestError(what)
    known = asked.model in KNOWN_MODELS or asked.model.startswith(PREFIX)
    chosen = replace(options, context=asked.context, weight_format=asked.weight_format)
    for name in (*models, *([asked.model] if known else [])):
        source = open_source(name, chosen, media=bool(asked.images))
        if source.model_hash() == asked.model_hash:
            return model_of(name, source, choose_backend(options), chosen)
        source.close()
    what = f"no model given has the hash {asked.model_hash}, which {asked.model} had"
    raise RequestError(what, where="model", hint="name its file or folder after the log")


def replayed(
    model: Model, answers: Iterator[LoggedAnswer], media: Sequence[tuple[str, str]] = ()
) -> Iterator[tuple[LoggedAnswer, str]]:
    """Compute answers again; yield each with its difference, which is empty if there is none."""
    files = _by_digest(model.senses, media)
    sounds = sounds_by_digest(model, [name for medium, name in media if medium == "audio"])
    running: list[tuple[LoggedAnswer, EngineSequence]] = []
    with Engine(model.executable, model.tokenizer) as engine:
        while True:
            for answer in islice(answers, AT_ONCE - len(running)):
                if answer.request.sound is not None:
                    yield answer, _heard(model, answer, answer.request.sound, sounds)
                    continue
                try:
                    running.append((answer, engine.submit(_request(model, answer, files))))
                except CortiqError as error:
                    yield answer, f"it is refused: {error}"
            if not running:
                if (after := next(answers, None)) is None:
                    return
                answers = chain([after], answers)
                continue
            with contextlib.suppress(CortiqError):  # which is in the sequences that it ended
                engine.step()
            ended = [one for one in running if one[1].done]
            running = [one for one in running if not one[1].done]
            yield from ((answer, difference(answer, made)) for answer, made in ended)


def _by_digest(senses: Senses, media: Sequence[tuple[str, str]]) -> Files:
    """Return files of images and sounds, with their medium, by what a model has of them; they are
    read again where needed. Those of a medium that it does not take are left out.
    """
    known = [one for one in media if one[0] in senses]
    return {senses.prepared([one], one[1])[0].digest: one for one in known}


def _with_images(model: Model, request: Request, digests: Sequence[str], files: Files) -> Request:
    """Return the request with the images or sounds that the log names; RequestError if one is not
    given.
    """
    if not digests:
        return request
    lacking = [digest for digest in digests if digest not in files]
    if lacking:
        medium, things = model.senses.named()
        what = f"it is about {things} that are not given: {', '.join(lacking)}"
        raise RequestError(what, where=medium, hint=f"cortiq replay LOG MODEL --{medium} FILE")
    made = model.senses.prepared((files[digest] for digest in digests), model.name)
    return with_images(request, model.senses.placed(request.prompt, made).spans, model.program)


def _heard(
    model: Model, answer: LoggedAnswer, asked: LoggedSound, sounds: Mapping[str, str]
) -> str:
    """Transcribe a logged sound again; return how it differs."""
    try:
        made = answer_of(again(model, asked, answer.request.options.temperature or 0.0, sounds))
    except CortiqError as error:
        return f"it is refused: {error}"
    return _difference(answer, made["token_ids"], made["digest"], made["finish_reason"])


def _request(model: Model, answer: LoggedAnswer, files: Files) -> Request:
    """Return the request of an answer for this model."""
    asked = answer.request
    if asked.end_ids != model.eos_ids:
        raise RequestError(f"the model ends at {model.eos_ids}, not at {asked.end_ids}")
    ids, options = asked.of_choice(answer.choice)
    request = make_request(ids, options, model.program, model.eos_ids)
    request = _with_images(model, request, asked.images, files)
    overlay = model.adapters.claimed(asked.adapter)
    model.adapters.sync(overlay)
    request = replace(request, shown_ids=asked.shown_ids, overlay=overlay)
    if asked.masks is None:
        return request
    from cortiq.serve.grammar import Grammars, masks_of

    grammars = Grammars(model.tokenizer, vocabulary_size(model.program), model.eos_ids)
    return replace(request, masks=masks_of(grammars, asked.masks, len(ids)))


def difference(answer: LoggedAnswer, made: EngineSequence) -> str:
    """Return how an answer differs from the log; empty if nothing does."""
    if made.error is not None:
        return f"it cannot be computed: {made.error}"
    output = made.output
    return _difference(answer, output.token_ids, output.digest.hex(), output.finish_reason)


def _difference(answer: LoggedAnswer, ids: Sequence[int], digest: str, reason: str | None) -> str:
    logged = answer.token_ids
    for step, (new, old) in enumerate(zip(ids, logged, strict=False)):
        if new != old:
            return f"token {step} is {new}, the log has {old}"
    if len(ids) != len(logged):
        return f"{len(ids)} tokens, the log has {len(logged)}"
    if digest != answer.digest:
        return "all tokens agree, the digests of their logits do not"
    if reason != answer.finish_reason:
        return f"it ended by {reason}, in the log by {answer.finish_reason}"
    return ""
