"""`/v1/audio/transcriptions` and `/v1/audio/translations`: what is said in a file of sound."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from cortiq.engine.request import Masks
from cortiq.errors import CortiqError
from cortiq.hearing.subtitles import srt, vtt
from cortiq.model.generation import Generation
from cortiq.model.hearing import SoundPrompt
from cortiq.model.transcribe import SpokenPart, Transcription, TranscriptionJob, hearing_of
from cortiq.options import GenerateOptions, resolve
from cortiq.serve.completion_params import model_name
from cortiq.serve.errors import as_api_error, invalid
from cortiq.serve.fields import Fields
from cortiq.serve.form_data import read_form
from cortiq.serve.request_body import body_bytes
from cortiq.serve.served_model import ServedModel
from cortiq.serve.service import Service

AUDIO_ENDPOINTS = ("/v1/audio/transcriptions", "/v1/audio/translations")
TASKS = {"transcriptions": "transcribe", "translations": "translate"}
FORMS = ("json", "text", "srt", "verbose_json", "vtt")
GRANULARITIES = "timestamp_granularities[]"
FILE = "file"


@dataclass(frozen=True)
class TranscriptionRequest:
    """A parsed request: the job, and the form of its answer."""

    served: ServedModel
    job: TranscriptionJob
    form: str

    def steps(self) -> Generator[Transcription | None, None, None]:
        """Compute the transcription; yield None between steps, and the whole at last."""
        steps = self.job.steps(self._run)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                yield end.value
                return
            yield None

    def _run(
        self, prompt: SoundPrompt, masks: Masks, options: dict[str, Any]
    ) -> Generator[None, None, Generation]:
        """Generate on the model's engine, beside its other requests."""
        model, engine = self.served.model, self.served.worker.engine
        chosen = resolve(GenerateOptions, options)
        sequence = engine.submit(model.request_of(prompt, chosen, masks))
        try:
            while not sequence.done:
                yield
        finally:
            sequence.cancel()
        if sequence.error is not None:
            raise sequence.error
        return model.generation_of(sequence.request, chosen, sequence.output, sequence.stats)


class AudioApi:
    """Handlers of the two paths."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def transcribe(self, request: HttpRequest) -> Response:
        """Handle `POST /v1/audio/transcriptions` and `/v1/audio/translations`."""
        data = await body_bytes(request, self.service.options)
        kind = request.headers.get("content-type", "")
        fields = await self.service.read(request, lambda: form_fields(data, kind))
        served = await self.service.hold(request, model_name(fields))
        task = TASKS[request.url.path.rpartition("/")[2]]
        parsed = await self.service.read(request, partial(parse_audio, served, fields, task))
        log = self.service.request_log
        number = "" if log is None else log.heard(parsed.job, request.url.path)
        made = await self.service.compute(request, served.worker, parsed.steps())
        if log is not None:
            log.transcribed(number, made)
        request.state.facts["new_tokens"] = sum(len(one.token_ids) for one in made.generations)
        return answer(made, parsed.form)

    def routes(self) -> list[Route]:
        """Return the routes, each with and without `/v1`."""
        paths = [path.removeprefix("/v1") for path in AUDIO_ENDPOINTS]
        return [
            Route(prefix + path, self.transcribe, methods=["POST"])
            for prefix in ("/v1", "")
            for path in paths
        ]


def form_fields(data: bytes, content_type: str) -> Fields:
    """Return the fields of a form: texts, the bytes of the file, and numbers where these are."""
    values: dict[str, Any] = {}
    for part in read_form(data, content_type):
        if part.name == FILE:
            values[FILE] = part.data
            continue
        try:
            text: Any = part.data.decode()
        except UnicodeDecodeError:
            raise invalid(f"'{part.name}' is no UTF-8.", part.name) from None
        if part.name in (GRANULARITIES, "include[]"):
            text = [*values.get(part.name, []), text]
        elif part.name == "temperature":
            with suppress(ValueError):
                text = float(text)
        elif part.name == "stream":
            text = {"true": True, "false": False}.get(text, text)
        values[part.name] = text
    return Fields(values)


def parse_audio(served: ServedModel, fields: Fields, task: str) -> TranscriptionRequest:
    """Parse a request; what is not implemented is refused by name."""
    model_name(fields)
    data = fields.get(FILE, bytes, "a file")
    if data is None:
        raise fields.wrong(FILE, "a file of sound")
    form = fields.choice("response_format", FORMS, "json")
    words = fields.items(GRANULARITIES) or []
    if words and (form != "verbose_json" or set(words) != {"segment"}):
        raise fields.wrong(GRANULARITIES, "segment, with the response_format verbose_json")
    if fields.flag("stream"):
        raise invalid("'stream' is not supported: the answer comes as a whole.", "stream")
    language = fields.text("language") if task == "transcribe" else None
    options = {"temperature": fields.number("temperature", 0, 1) or 0.0}
    prompt = fields.text("prompt", "") or ""
    served.check_size(prompt, "prompt")
    fields.close()
    timed = form in ("srt", "vtt", "verbose_json")
    try:
        samples = hearing_of(served.model).samples(data)
        job = TranscriptionJob(served.model, samples, language, task, timed, prompt, options)
    except CortiqError as error:
        raise as_api_error(error) from error
    return TranscriptionRequest(served, job, form)


def answer(made: Transcription, form: str) -> Response:
    """Return a transcription in the form that was asked for."""
    texts: Mapping[str, Any] = {
        "text": lambda: made.text + "\n", "srt": lambda: srt(made.parts),
        "vtt": lambda: vtt(made.parts),
    }  # fmt: skip
    if form in texts:
        return PlainTextResponse(texts[form]())
    usage = {"type": "duration", "seconds": math.ceil(made.duration)}
    if form == "json":
        return JSONResponse({"text": made.text, "usage": usage})
    segments = [_segment(made, number, part) for number, part in enumerate(made.parts)]
    return JSONResponse(
        {"task": made.task, "language": made.language or "en", "duration": made.duration,
         "text": made.text, "segments": segments, "usage": usage}
    )  # fmt: skip


def _segment(made: Transcription, number: int, part: SpokenPart) -> dict[str, Any]:
    """Return a segment as OpenAI has it."""
    scores = made.scores[part.window]
    return {
        "id": number, "seek": 0, "start": part.start, "end": part.end, "text": part.text,
        "tokens": list(part.token_ids), "temperature": scores.temperature,
        "avg_logprob": scores.mean_logprob, "compression_ratio": scores.compression_ratio,
        "no_speech_prob": scores.no_speech,
    }  # fmt: skip
