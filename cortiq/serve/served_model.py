"""A served model: its name, its worker, and its dialects."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cortiq.dialects.dialect import ToolDialect
from cortiq.dialects.registry import dialect_of
from cortiq.dialects.thinking import Thinking, thinking_of
from cortiq.engine.request import vocabulary_size
from cortiq.model.default_sampling import CORTIQ_SAMPLING, DefaultSampling
from cortiq.model.model import Model
from cortiq.numerics.contract import CONTRACT_VERSION
from cortiq.serve.errors import too_large
from cortiq.serve.grammar import Grammars
from cortiq.serve.worker import Worker
from cortiq.tokenizer.tokenizer import Tokenizer

HASH_LETTERS = 16


@dataclass(frozen=True)
class ServedModel:
    """A model that the server offers.

    Attributes
    ----------
    name : its `id` for clients.
    dialect, thinking : its syntax of tool calls and of thinking; None if it has none.
    shown_ids : control tokens that are parts of their markers.
    fingerprint : contract version, model hash, and a hash of all that determines the logits; the
        same on every backend.
    grammars : compiler of grammars for structured output.
    created : time of loading, in seconds since 1970.
    usual : how requests are sampled that do not say.
    """

    name: str
    model: Model
    worker: Worker
    dialect: ToolDialect | None
    thinking: Thinking | None
    shown_ids: frozenset[int]
    fingerprint: str
    grammars: Grammars
    created: int = field(default_factory=lambda: int(time.time()))
    usual: DefaultSampling = CORTIQ_SAMPLING

    def check_size(self, text: str, param: str) -> None:
        """Refuse a text too long for the context whatever its tokens, before it is tokenized.

        Raises
        ------
        ApiError : 400, `context_length_exceeded`.
        """
        size, context = len(text.encode("utf-8", "surrogatepass")), self.model.context
        if size > context and size > context * (longest := self.model.tokenizer.longest_token):
            raise too_large(size, longest, context, param)

    def as_dict(self) -> dict[str, Any]:
        """Return the model's entry in `/v1/models`."""
        model = self.model
        return {
            "id": self.name,
            "type": "model",
            "display_name": self.name,
            "created_at": datetime.fromtimestamp(self.created, UTC).isoformat(),
            "object": "model",
            "created": self.created,
            "owned_by": "cortiq",
            "context_length": model.context,
            "backend": f"{model.backend}:{model.device}",
            "system_fingerprint": self.fingerprint,
            "chat": model.tokenizer.chat_template() is not None,
            "tools": self.dialect.name if self.dialect else None,
            "thinking": self.thinking is not None,
            "images": model.has_medium("image"),
            "audio": model.hearing is not None or model.has_medium("audio"),
            "transcribes": model.hearing is not None,
            "sampling": {**self.usual.values, "origin": self.usual.origin},
        }


def make_served_model(
    model: Model,
    worker: Worker,
    dialects: Sequence[ToolDialect] = (),
    sampling: Mapping[str, Any] | None = None,
) -> ServedModel:
    """Return a model with its worker and the dialects of its chat template.

    Parameters
    ----------
    dialects : tool dialects that plugins bring.
    sampling : the operator's defaults of sampling, by name of the option.
    """
    tokenizer = model.tokenizer
    dialect = dialect_of(tokenizer.chat_template(tools=True), dialects)
    thinking = thinking_of(tokenizer.chat_template())
    return ServedModel(
        client_name(model.name),
        model,
        worker,
        dialect,
        thinking,
        shown_ids(tokenizer, dialect, thinking),
        system_fingerprint(model),
        Grammars(tokenizer, vocabulary_size(model.program), model.eos_ids),
        usual=model.usual.changed(sampling or {}),
    )


def client_name(name: str) -> str:
    """Return a model's name for clients: of a path the last part, without `.gguf`."""
    path = Path(name)
    if path.suffix == ".gguf" or path.is_dir():
        return path.resolve().name.removesuffix(".gguf")
    return name


def system_fingerprint(model: Model) -> str:
    """Return contract version, model hash, and the hash of all that determines the logits."""
    model_hash, all_hash = model.model_hash[:HASH_LETTERS], model.fingerprint[:HASH_LETTERS]
    return f"c{CONTRACT_VERSION}-{model_hash}-{all_hash}"


def shown_ids(
    tokenizer: Tokenizer, dialect: ToolDialect | None, thinking: Thinking | None
) -> frozenset[int]:
    """Return the control tokens in the markers of calls and thinking, which texts must keep."""
    if tokenizer.absent:
        return frozenset()
    markers = [dialect.opens, dialect.closes, *dialect.inner] if dialect else []
    markers += [thinking.opens, thinking.closes, *thinking.frames] if thinking else []
    ids = [tokenizer.encode(m, add_bos=False, parse_special=True) for m in markers if m]
    return frozenset(token for several in ids for token in several if tokenizer.is_special(token))
