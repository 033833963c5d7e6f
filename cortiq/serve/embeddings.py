"""`/v1/embeddings`: a vector for each text, pooled from hidden states."""

from __future__ import annotations

import base64
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cortiq.model.embed import embedding_steps
from cortiq.options import EmbedOptions
from cortiq.serve.errors import invalid, too_long
from cortiq.serve.fields import Fields
from cortiq.serve.parsed_request import parse_prompts
from cortiq.serve.served_model import ServedModel

POOLINGS = ("mean", "last")


@dataclass(frozen=True)
class EmbeddingRequest:
    """A parsed embedding request.

    Attributes
    ----------
    ids : token ids of each text. encoding : `float`, or `base64` of little-endian float32.
    """

    served: ServedModel
    ids: Sequence[Sequence[int]]
    options: EmbedOptions
    encoding: str

    def steps(self) -> Generator[np.ndarray | None, None, None]:
        """Compute the vectors one by one; yield None between steps and all of them at the end."""
        made = []
        for ids in self.ids:
            for vector in embedding_steps(self.served.model.executable, ids, self.options):
                if vector is None:
                    yield None
                else:
                    made.append(vector)
        yield np.stack(made)

    def response(self, vectors: np.ndarray) -> dict[str, Any]:
        """Return the response object."""
        data = [
            {"object": "embedding", "index": index, "embedding": self._encoded(vector)}
            for index, vector in enumerate(vectors)
        ]
        count = sum(map(len, self.ids))
        return {
            "object": "list",
            "data": data,
            "model": self.served.name,
            "pooling": self.options.pooling,
            "system_fingerprint": self.served.fingerprint,
            "usage": {"prompt_tokens": count, "total_tokens": count},
        }

    def _encoded(self, vector: np.ndarray) -> Any:
        if self.encoding == "base64":
            return base64.b64encode(vector.astype("<f4").tobytes()).decode()
        return vector.tolist()


def parse_embeddings(served: ServedModel, fields: Fields) -> EmbeddingRequest:
    """Parse an embedding request; `pooling` (`mean` or `last`) is our own field."""
    fields.text("model")
    fields.belongs("input")
    prompts = parse_prompts(fields, "input")
    encoding = fields.choice("encoding_format", ("float", "base64"), "float")
    options = EmbedOptions(
        pooling=fields.choice("pooling", POOLINGS, "mean"),
        normalise=fields.flag("normalise", True),
    )
    width = fields.integer("dimensions", 1, 2**31)
    if width is not None:
        raise invalid("'dimensions': vectors have the model's own width.", "dimensions")
    fields.close()
    model = served.model
    for prompt in prompts:
        if isinstance(prompt, str):
            served.check_size(prompt, "input")
    ids = [model.ids(prompt) for prompt in prompts]
    for one in ids:
        if len(one) > model.context:
            raise too_long(len(one), model.context, "input")
    return EmbeddingRequest(served, ids, options, encoding)
