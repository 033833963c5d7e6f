"""Reading of request logs: hostile files until every field is checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cortiq.errors import FormatError, RequestError, shown
from cortiq.formats.strict_json import MAX_BYTES
from cortiq.options import GenerateOptions
from cortiq.receipts.reader import read_adapter, read_options
from cortiq.serve.log_transcriptions import LoggedSound, read_sound
from cortiq.serve.request_log import LOG_VERSION, open_line

MOST_CHOICES = 1 << 16


@dataclass(frozen=True)
class LoggedRequest:
    """A request of a log.

    Attributes
    ----------
    id, time, path : its number in the log, seconds since 1970, and the path it was sent to.
    model, model_hash : the model as the server loaded it.
    contract, context, weight_format, end_ids : as in a receipt's claim.
    shown_ids : control tokens that are part of the text.
    prompts : token ids. n : choices of each. seeds : of each prompt. options : of all of them.
    masks : recipe of the masks that restricted it; None without.
    images : digests of the images in its prompt, which the log does not hold.
    adapter : as in a receipt's claim. sound : what is transcribed; None for other requests.
    """

    id: str
    time: float
    path: str
    model: str
    model_hash: str
    contract: int
    context: int
    weight_format: str | None
    end_ids: tuple[int, ...]
    shown_ids: frozenset[int]
    prompts: tuple[tuple[int, ...], ...]
    n: int
    seeds: tuple[int, ...]
    options: GenerateOptions
    masks: Mapping[str, Any] | None
    images: tuple[str, ...] = ()
    adapter: tuple[str, float] | None = None
    sound: LoggedSound | None = None

    def of_choice(self, choice: int) -> tuple[tuple[int, ...], GenerateOptions]:
        """Return the prompt and the options of one choice."""
        prompt, number = divmod(choice, self.n)
        seed = self.seeds[prompt]
        return self.prompts[prompt], replace(self.options, choice=number, seed=seed)


@dataclass(frozen=True)
class LoggedAnswer:
    """A choice of a logged request, and what it became."""

    request: LoggedRequest
    choice: int
    token_ids: tuple[int, ...]
    digest: str
    finish_reason: str


@dataclass
class LogReader:
    """Reads the answers of a log, each with its request.

    Attributes
    ----------
    torn : lines that are no whole records. open : requests that have choices without an answer,
        by number.
    """

    path: Path
    torn: int = 0
    open: dict[str, tuple[LoggedRequest, set[int]]] = field(default_factory=dict)

    def answers(self) -> Iterator[LoggedAnswer]:
        """Yield the answers in the order in which they were written.

        Raises
        ------
        FormatError : it is no log of requests, or a whole line is not as one is written.
        """
        self.torn, self.open = 0, {}
        for number, record in self._records():
            where = f"{self.path}, line {number}"
            try:
                if record.get("kind") == "asked":
                    made = logged_request(record)
                    self.open[made.id] = made, set(range(len(made.prompts) * made.n))
                elif (found := self._answer(record)) is not None:
                    yield found
            except (KeyError, TypeError, ValueError) as error:
                raise FormatError(f"is no line of a request log: {error!r}", where=where) from None
            except (FormatError, RequestError) as error:
                raise FormatError(f"is no line of a request log: {error}", where=where) from None

    def _records(self) -> Iterator[tuple[int, dict[str, Any]]]:
        whole = 0
        try:
            with self.path.open("rb") as file:
                for number, line in enumerate(iter(lambda: file.readline(MAX_BYTES), b""), 1):
                    record = open_line(line)
                    if record is None:
                        self.torn += line != b"\n"
                        continue
                    whole += 1
                    yield number, record
        except OSError as error:
            what = f"cannot be read: {error.strerror}"
            raise FormatError(what, where=str(self.path)) from None
        if self.torn and not whole:
            raise FormatError("is no request log: no line of it is one", where=str(self.path))

    def _answer(self, record: Mapping[str, Any]) -> LoggedAnswer | None:
        """Return an answer; None if its request was torn, or is older than the file."""
        _check_version(record)
        asked, missing = self.open.get(record["id"], (None, set()))
        if asked is None:
            return None
        choice = _integer(record["choice"], "choice")
        if choice not in missing:
            raise ValueError(f"choice {choice} of {asked.id} is answered twice, or was not asked")
        missing.remove(choice)
        if not missing:
            del self.open[asked.id]
        ids = _ids(record["token_ids"], "token_ids")
        digest, reason = _text(record["digest"], "digest"), record["finish_reason"]
        return LoggedAnswer(asked, choice, ids, digest, _text(reason, "finish_reason"))


def logged_request(record: Mapping[str, Any]) -> LoggedRequest:
    """Return the request of a record.

    Raises
    ------
    KeyError, TypeError, ValueError, FormatError : it is none.
    """
    _check_version(record)
    n, prompts = _integer(record["n"], "n"), record["prompts"]
    if not 1 <= n * len(prompts) <= MOST_CHOICES:
        raise ValueError(f"{n} choices of {len(prompts)} prompts")
    seeds = _ids(record["seeds"], "seeds")
    if len(seeds) != len(prompts):
        raise ValueError(f"{len(seeds)} seeds of {len(prompts)} prompts")
    time = record["time"]
    if type(time) not in (int, float):
        raise TypeError(f"time is {shown(time)}")
    form = record["weight_format"]
    return LoggedRequest(
        id=_text(record["id"], "id"),
        time=time,
        path=_text(record["path"], "path"),
        model=_text(record["model"], "model"),
        model_hash=_text(record["model_hash"], "model_hash"),
        contract=_integer(record["contract"], "contract"),
        context=_integer(record["context"], "context"),
        weight_format=form if form is None else _text(form, "weight_format"),
        end_ids=_ids(record["end_ids"], "end_ids"),
        shown_ids=frozenset(_ids(record["shown_ids"], "shown_ids")),
        prompts=tuple(_ids(ids, "prompts") for ids in prompts),
        n=n,
        seeds=seeds,
        options=read_options(record["options"], "options"),
        masks=_recipe(record["masks"]),
        images=tuple(_text(digest, "images") for digest in record.get("images", ())),
        adapter=read_adapter(record["adapter"], "adapter") if "adapter" in record else None,
        sound=read_sound(record.get("transcription")),
    )


def _check_version(record: Mapping[str, Any]) -> None:
    if record["version"] != LOG_VERSION:
        raise ValueError(f"version {shown(record['version'])}, this cortiq reads {LOG_VERSION}")


def _recipe(value: Any) -> Mapping[str, Any] | None:
    if value is None:
        return None
    texts = {name: _text(value[name], name) for name in ("grammar", "opens", "closes")}
    return {**texts, "opened": value["opened"] is True}


def _text(value: Any, name: str) -> str:
    if type(value) is not str:
        raise TypeError(f"{name} is {shown(value)}")
    return value


def _integer(value: Any, name: str) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"{name} is {shown(value)}")
    return value


def _ids(value: Any, name: str) -> tuple[int, ...]:
    if type(value) is not list:
        raise TypeError(f"{name} is {shown(value)}")
    return tuple(_integer(item, name) for item in value)
