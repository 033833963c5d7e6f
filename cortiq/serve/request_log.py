"""A log of requests and answers that can be replayed to the bit: `cortiq replay` (`log_replay`).

Two lines of JSON for each request: `asked` when it is submitted, with everything that decides its
tokens, and `answered` for each choice that has ended. A line is written by one call, appended, and
ends with a check of itself: after a kill at any moment every line is whole or recognised as torn.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cortiq.engine.overlay import facts_of
from cortiq.engine.sequence import Sequence
from cortiq.errors import CortiqError
from cortiq.model.model import Model
from cortiq.model.transcribe import Transcription, TranscriptionJob
from cortiq.numerics.contract import CONTRACT_VERSION
from cortiq.options import GenerateOptions, resolve
from cortiq.receipts.record import canonical, options_object
from cortiq.serve.errors import ApiError
from cortiq.serve.log_transcriptions import answer_of, sound_of
from cortiq.serve.logs import LOG
from cortiq.serve.parsed_request import ParsedRequest

LOG_VERSION = 1
CHECK_DIGITS = 16
"""Hexadecimal digits of a line's check, which finds torn lines and proves nothing."""


class RequestLog:
    """An append-only file of requests and answers.

    Raises
    ------
    CortiqError : the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
            self._end_torn_line()
        except OSError as error:
            what = f"requests cannot be logged here: {error.strerror}"
            raise CortiqError(what, where=str(path)) from None

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def asked(self, parsed: ParsedRequest, path: str) -> str:
        """Write what was asked; return the request's id in the log."""
        first = parsed.requests[0]
        masks = first.masks
        return self._asked(parsed.served.model, path, {
            "shown_ids": sorted(first.shown_ids),
            "prompts": [list(ids) for ids in parsed.prompts], "n": parsed.params.n,
            "seeds": [one.sampling.seed for one in parsed.requests[:: parsed.params.n]],
            "options": options_object(parsed.params.options),
            **({"images": list(seen)} if (seen := first.image_digests) else {}),
            "masks": None if masks is None else getattr(masks, "recipe", {}),
            **({} if first.overlay is None else {"adapter": facts_of(first.overlay)}),
        })  # fmt: skip

    def heard(self, job: TranscriptionJob, path: str) -> str:
        """Write what is to be transcribed, as a prompt without ids; return its id in the log."""
        options = resolve(GenerateOptions, job.options)
        return self._asked(job.model, path, {
            "shown_ids": [], "prompts": [[]], "n": 1, "seeds": [options.seed or 0], "masks": None,
            "options": options_object(options), "transcription": asdict(sound_of(job)),
        })  # fmt: skip

    def _asked(self, model: Model, path: str, facts: Mapping[str, Any]) -> str:
        number = secrets.token_hex(12)
        self._write({
            "kind": "asked", "version": LOG_VERSION, "id": number, "time": round(time.time(), 3),
            "path": path, "model": model.name, "model_hash": model.model_hash,
            "contract": CONTRACT_VERSION, "context": model.context,
            "weight_format": model.options.weight_format, "end_ids": list(model.eos_ids), **facts,
        })  # fmt: skip
        return number

    def answered(self, number: str, choice: int, sequence: Sequence) -> None:
        """Write what a choice of a request became."""
        output = sequence.output
        self._answered(number, choice, {
            "token_ids": output.token_ids, "digest": output.digest.hex(),
            "finish_reason": output.finish_reason,
        })  # fmt: skip

    def transcribed(self, number: str, made: Transcription) -> None:
        """Write what a sound became."""
        self._answered(number, 0, answer_of(made))

    def _answered(self, number: str, choice: int, facts: Mapping[str, Any]) -> None:
        known = {"kind": "answered", "version": LOG_VERSION, "id": number, "choice": choice}
        self._write({**known, **facts})

    def _write(self, record: Mapping[str, Any]) -> None:
        data = sealed_line(record)
        try:
            written = os.write(self._file, data)
            if written != len(data):
                self._end_torn_line()
                raise OSError(None, "the disk is full")
        except OSError as error:
            LOG.error(f"{self._path}: a request could not be logged: {error.strerror}")
            message = "The server could not log this request, which it has to."
            raise ApiError(500, message, "request_log_error") from error

    def _end_torn_line(self) -> None:
        """End the last line, which another process may have left torn."""
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            with contextlib.suppress(OSError):
                os.write(self._file, b"\n")


def sealed_line(record: Mapping[str, Any]) -> bytes:
    """Return a record as a line with its check."""
    data = canonical(record)
    return data[:-1] + f',"check":"{check_of(data)}"}}\n'.encode()


def check_of(data: bytes) -> str:
    """Return the check of a record's canonical JSON."""
    return hashlib.sha256(data).hexdigest()[:CHECK_DIGITS]


def open_line(line: bytes) -> dict[str, Any] | None:
    """Return the record of a line, or None if the line is torn or was changed."""
    try:
        record = json.loads(line)
        check = record.pop("check")
        return record if check == check_of(canonical(record)) else None
    except (ValueError, AttributeError, TypeError, KeyError, RecursionError):
        return None
