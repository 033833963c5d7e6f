"""Encoders on the `tokenizers` library: in this process, or in a child that can be killed.

A tokenizer.json whose cost is known (`encoding_cost`) runs in this process. Everything else - a
pattern that may backtrack without end, a normalizer that grows the text, a model of another kind -
runs in a child process with limits of memory and processor time, whose panics stay off the
terminal. The ids are the same.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import weakref
from collections.abc import Mapping
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

from cortiq.errors import TokenizerError, UnsupportedError
from cortiq.tokenizer.byte_level import encoded, library_errors
from cortiq.tokenizer.encoding_cost import part_of_unknown_cost, refuse_growth

if TYPE_CHECKING:
    import tokenizers

__all__ = ["ChildEncoder", "TextEncoder", "LocalEncoder", "build", "describe", "open_encoder"]

LOAD_SECONDS = 30.0
ENCODE_SECONDS, SECONDS_PER_CHARACTER = 2.0, 20e-6
MEMORY, PER_FILE_CHARACTER, PER_TEXT_CHARACTER = 1 << 30, 64, 256
"""Bytes of address space that a child may use."""

_START = (
    "import sys; sys.path[:] = {path!r}; from cortiq.tokenizer.encoder_process import main; main()"
)


class TextEncoder(Protocol):
    """Turns text into ids.

    `description`: the result of `describe`.
    """

    description: dict[str, Any]

    def encode(self, text: str, parse_special: bool) -> list[int]:
        """Return the ids of a text, without those that a post-processor adds."""


def open_encoder(text: str, described: Mapping[str, Any], where: str) -> TextEncoder:
    """Open the encoder of a tokenizer.json.

    Parameters
    ----------
    text, described : the file, and the JSON object in it.
    """
    refuse_growth(described, where)
    unknown = part_of_unknown_cost(described)
    return ChildEncoder(text, unknown, where) if unknown else LocalEncoder(text, where)


def build(text: str) -> tokenizers.Tokenizer:
    """Build the library's tokenizer of a tokenizer.json, without truncation or padding."""
    from tokenizers import Tokenizer

    engine = Tokenizer.from_str(text)
    engine.no_truncation()
    engine.no_padding()
    return engine


def describe(engine: tokenizers.Tokenizer) -> dict[str, Any]:
    """Return vocabulary and parts of a tokenizer as JSON, without decoder and post-processor.

    Its pieces are what the library's decoders would get, which for some added tokens is not their
    content.
    """
    parts = {"decoder": engine.decoder, "post_processor": engine.post_processor}
    described = {name: _state(part) for name, part in parts.items()}
    engine.decoder = engine.post_processor = None
    added = engine.get_added_tokens_decoder().items()
    return described | {
        "ids": engine.get_vocab(with_added_tokens=True),
        "added": [[token, item.content, item.special] for token, item in added],
        "pieces": [[t, engine.decode([t], skip_special_tokens=False)] for t, _ in added],
        "has_unknown": getattr(engine.model, "unk_token", None) is not None,
    }


def _state(part: Any) -> Any:
    """Return a part as JSON, which the library exposes only through pickling."""
    return None if part is None else json.loads(part.__getstate__())


class LocalEncoder:
    """An encoder in this process."""

    def __init__(self, text: str, where: str) -> None:
        self._lock = Lock()
        with library_errors("not a tokenizer", where):
            self._engine = build(text)
            self.description = describe(self._engine)

    def encode(self, text: str, parse_special: bool) -> list[int]:
        """Return the ids of a text."""
        # The switch is a property of the engine.
        with self._lock, library_errors("the text cannot be encoded"):
            self._engine.encode_special_tokens = not parse_special
            return list(encoded(self._engine, text))


class ChildEncoder:
    """An encoder in a child process, which is restarted after it was killed.

    Parameters
    ----------
    text : a tokenizer.json.
    why : the part whose cost is unknown.
    """

    def __init__(self, text: str, why: str, where: str) -> None:
        if not hasattr(signal, "setitimer"):
            what = f"{why} has no bound on its time, and {sys.platform} cannot limit it"
            raise UnsupportedError(what, where=where, hint="use the model on Linux or macOS")
        self._text, self._why, self._where = text, why, where
        self._memory = MEMORY + PER_FILE_CHARACTER * len(text)
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        with self._lock:
            self.description = self._start()

    def encode(self, text: str, parse_special: bool) -> list[int]:
        """Return the ids of a text; a TokenizerError if the child exceeds its limits."""
        seconds = ENCODE_SECONDS + SECONDS_PER_CHARACTER * len(text)
        with self._lock:
            if self._process is None:
                self._start()
            asked = {"text": text, "parse_special": parse_special, "seconds": seconds}
            asked["memory"] = self._memory + PER_TEXT_CHARACTER * len(text)
            ids: list[int] = self._ask("the text cannot be encoded", asked)
        return ids

    def _start(self) -> dict[str, Any]:
        self._process = process = subprocess.Popen(
            [sys.executable, "-c", _START.format(path=sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        weakref.finalize(self, _end, process)
        asked = {"file": self._text, "seconds": LOAD_SECONDS, "memory": self._memory}
        answer: dict[str, Any] = self._ask("not a tokenizer", asked)
        return answer

    def _ask(self, what: str, asked: Mapping[str, Any]) -> Any:
        """Return the child's answer to a question; `what` names it in errors."""
        process = self._process
        assert process and process.stdin and process.stdout
        try:
            process.stdin.write(json.dumps(asked).encode() + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except OSError:  # it ended before it had read all
            line = b""
        except BaseException:  # the caller no longer waits for the answer
            self._stop(process)
            raise
        if line.endswith(b"\n"):
            answer = json.loads(line)
            if "error" in answer:
                raise TokenizerError(f"{what}: {answer['error']}", where=self._where)
            return answer["answer"]
        self._stop(process)
        limit = f"{asked['memory'] >> 20} MiB of memory"
        if process.returncode == -signal.SIGPROF:
            limit = f"{asked['seconds']:.3g} s of processor time"
        hint = f"the file does not bound the cost of {self._why}, so it runs with limits"
        raise TokenizerError(f"{what}: it takes more than {limit}", where=self._where, hint=hint)

    def _stop(self, process: subprocess.Popen[bytes]) -> None:
        _end(process)
        self._process = None


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe:
            with suppress(OSError):  # what it did not read
                pipe.close()
