"""`/v1/embeddings`: a vector for each text, pooled from hidden states."""

from __future__ import annotations

import base64
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cortiq.model.embed import check_dimensions, embedding_steps, framed_prompt
from cortiq.options import EmbedOptions, specs
from cortiq.serve.errors import too_long
from cortiq.serve.fields import Fields
from cortiq.serve.prompt_fields import parse_prompts
from cortiq.serve.served_model import ServedModel
from cortiq.tokenizer.frames import FramedText

POOLINGS = specs(EmbedOptions)["pooling"].choices


@dataclass(frozen=True)
class EmbeddingRequest:
    """A parsed embedding request.

    Attributes
    ----------
    texts : ids of each text, as the tokenizer frames it.
    encoding : `float`, or `base64` of little-endian float32.
    """

    served: ServedModel
    texts: Sequence[FramedText]
    options: EmbedOptions
    encoding: str

    def steps(self) -> Generator[np.ndarray | None, None, None]:
        """Compute the vectors one by one; yield None between steps and all of them at the end."""
        made = []
        for text in self.texts:
            for vector in embedding_steps(self.served.model.executable, text, self.options):
                if vector is None:
                    yield None
                else:
                    made.append(vector)
        yield np.stack(made)

    @property
    def tokens(self) -> int:
        """Tokens of all texts."""
        return sum(len(text.ids) for text in self.texts)

    def response(self, vectors: np.ndarray) -> dict[str, Any]:
        """Return the response object."""
        data = [
            {"object": "embedding", "index": index, "embedding": self._encoded(vector)}
            for index, vector in enumerate(vectors)
        ]
        return {
            "object": "list",
            "data": data,
            "model": self.served.name,
            "pooling": self.options.pooling,
            "system_fingerprint": self.served.fingerprint,
            "usage": {"prompt_tokens": self.tokens, "total_tokens": self.tokens},
        }

    def _encoded(self, vector: np.ndarray) -> Any:
        if self.encoding == "base64":
            return base64.b64encode(vector.astype("<f4").tobytes()).decode()
        return vector.tolist()


def parse_embeddings(served: ServedModel, fields: Fields) -> EmbeddingRequest:
    """Parse an embedding request; `pooling`, `normalise` and `prompt_name` are our own fields."""
    fields.text("model")
    fields.belongs("input")
    prompts = parse_prompts(fields, "input")
    encoding = fields.choice("encoding_format", ("float", "base64"), "float")
    options = EmbedOptions(
        pooling=served.model.pooling(fields.choice("pooling", POOLINGS, "auto")),
        normalise=fields.flag("normalise", True),
        prompt_name=fields.text("prompt_name", "auto") or "",
        dimensions=fields.integer("dimensions", 1, 2**31 - 1),
    )
    fields.close()
    model = served.model
    check_dimensions(model.program, options.dimensions)
    for prompt in prompts:
        if isinstance(prompt, str):
            served.check_size(prompt, "input")
    texts = [framed_prompt(model, prompt, options.prompt_name) for prompt in prompts]
    for one in texts:
        if len(one.ids) > model.context:
            raise too_long(len(one.ids), model.context, "input")
    return EmbeddingRequest(served, texts, options, encoding)
