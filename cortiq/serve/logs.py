"""One log line per request: path, status, tokens and times, never any text."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping
from typing import Any

from cortiq.errors import printable, printable_json
from cortiq.serve.generation_job import GenerationJob

LOG = logging.getLogger("cortiq.serve")


def configure_logging(form: str) -> None:
    """Log to stderr, as text or as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    for name in ("cortiq.serve", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
    LOG.setLevel(logging.INFO)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)


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
    computed = first.prompt_tokens - first.reused_tokens
    if first.first is not None and first.prompt_seconds > 0:
        facts["first_token_seconds"] = round(first.prompt_seconds, 4)
        facts["prompt_rate"] = round(computed / first.prompt_seconds, 2)
    if first.decoded_tokens and first.decode_seconds > 0:
        facts["decode_rate"] = round(first.decoded_tokens / first.decode_seconds, 2)
    return facts
