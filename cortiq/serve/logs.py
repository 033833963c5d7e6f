"""One log line per request: path, status, tokens and times, never any text."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping
from logging.handlers import WatchedFileHandler
from typing import Any

from cortiq.errors import CortiqError, printable, printable_json
from cortiq.serve.generation_job import GenerationJob

LOG = logging.getLogger("cortiq.serve")


def configure_logging(form: str | None, access_log: str | None = None) -> None:
    """Log to stderr, and requests to a file, too, as JSON.

    Parameters
    ----------
    form : `short`, `text` or `json`; None is short lines on a terminal and text elsewhere.
    access_log : file to append to; None for none.

    Raises
    ------
    CortiqError : the file cannot be written.
    """
    handler = logging.StreamHandler(sys.stderr)
    form = form or ("short" if sys.stderr.isatty() else "text")
    handler.setFormatter(FORMATTERS[form]())
    for name in ("cortiq.serve", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
    LOG.setLevel(logging.INFO)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    if access_log is not None:
        LOG.addHandler(_access_handler(access_log))


def _access_handler(path: str) -> logging.Handler:
    """Return what appends requests to a file, opened again after a rotation has renamed it."""
    try:
        made = WatchedFileHandler(path, encoding="utf-8")
    except OSError as error:
        what = f"requests cannot be logged here: {error.strerror}"
        raise CortiqError(what, where=path) from None
    made.setFormatter(JsonFormatter())
    made.addFilter(lambda record: hasattr(record, "facts"))
    return made


class ShortFormatter(logging.Formatter):
    """Formats records for a terminal: a request as time, status, path, model, tokens, seconds."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as one line, followed by its traceback if there is one."""
        facts, stamp = _facts(record), time.strftime("%H:%M:%S", time.localtime(record.created))
        text = (
            _short_request(facts) if facts else f"{record.levelname.lower()}: {record.getMessage()}"
        )
        trace = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return printable(f"{stamp} {text}{trace}")


def _short_request(facts: Mapping[str, Any]) -> str:
    """Return a request's facts as people read them on a terminal."""
    words = [str(facts["status"]), facts["method"], _word(facts["path"])]
    words += [_word(facts[name]) for name in ("model", "key") if name in facts]
    if "new_tokens" in facts:
        cached = f" ({facts['cached_tokens']} cached)" if facts.get("cached_tokens") else ""
        words.append(f"{facts['prompt_tokens']}{cached} + {facts['new_tokens']} tokens")
    words.append(f"{facts['seconds']:.2f} s")
    if "decode_rate" in facts:
        words.append(f"{facts['decode_rate']:.0f} tokens/s")
    words += [_word(facts[name]) for name in ("error", "param") if name in facts]
    return " ".join(words)


class TextFormatter(logging.Formatter):
    """Formats records as `time level message key=value ...`."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as one line, followed by its traceback if there is one."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        facts = " ".join(f"{name}={_word(value)}" for name, value in _facts(record).items())
        text = f"{stamp} {record.levelname.lower()} {record.getMessage()} {facts}".rstrip()
        trace = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return printable(text + trace)


class JsonFormatter(logging.Formatter):
    """Formats records as one JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as one JSON object."""
        facts = {"time": round(record.created, 3), "level": record.levelname.lower()}
        made = {**facts, "message": record.getMessage(), **_facts(record)}
        if record.exc_info:
            made["traceback"] = self.formatException(record.exc_info)
        return printable_json(json.dumps(made, ensure_ascii=False, default=str))


def _facts(record: logging.LogRecord) -> Mapping[str, Any]:
    return getattr(record, "facts", {})


def _word(value: object) -> str:
    """Return a value as one word, quoted if need be, so that clients cannot forge log lines."""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return json.dumps(text, ensure_ascii=True) if not text.isprintable() or " " in text else text


FORMATTERS = {"short": ShortFormatter, "text": TextFormatter, "json": JsonFormatter}
"""Formatters of stderr, by the name of their form."""


def job_facts(job: GenerationJob) -> dict[str, Any]:
    """Return token counts and rates of a job for its log line."""
    stats = [sequence.stats for sequence in job.sequences.values()]
    if not stats:
        return {}
    first = stats[0]
    facts: dict[str, Any] = {
        "prompt_tokens": first.prompt_tokens,
        "cached_tokens": first.reused_tokens,
        "new_tokens": sum(one.generated_tokens for one in stats),
    }
    drafters = [one for each in stats for one in each.drafts.drafters.values()]
    rare = {
        "prefix_hits": int(first.reused_tokens > 0),
        "drafted_tokens": sum(one.drafted for one in drafters),
        "accepted_tokens": sum(one.accepted for one in drafters),
        "evictions": sum(one.evicted for one in stats),
        "preemptions": sum(one.preempted for one in stats),
    }
    facts |= {name: count for name, count in rare.items() if count}
    computed = first.prompt_tokens - first.reused_tokens
    if first.first is not None and first.prompt_seconds > 0:
        facts["first_token_seconds"] = round(first.prompt_seconds, 4)
        facts["prompt_rate"] = round(computed / first.prompt_seconds, 2)
    if first.decoded_tokens and first.decode_seconds > 0:
        facts["decode_rate"] = round(first.decoded_tokens / first.decode_seconds, 2)
    return facts
