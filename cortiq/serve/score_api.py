"""`/v1/score` and `/v1/rerank`: texts scored by how likely the model finds them.

Every number is a sum of the contract's log-probabilities, so it has the same bits on any backend.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cortiq.model.embed import encoder_of
from cortiq.model.harness_requests import EvaluationModel, Pair
from cortiq.model.prompt_logprobs import prompt_logprob_steps
from cortiq.model.rerank import AUTO, COSINE, METHODS, YES_NO, method_for, reranked, yes_no_ids
from cortiq.serve.completion_params import model_name
from cortiq.serve.errors import invalid, too_long
from cortiq.serve.fields import Fields, object_fields
from cortiq.serve.served_model import ServedModel
from cortiq.serve.service import Service

SCORE_ENDPOINTS = ("/v1/score", "/v1/rerank")
MOST_PAIRS = 1024
LIKELIHOOD = "likelihood"
"""Method of reranking that any model has."""
BETWEEN = "\n\n"
"""Text between a document and the query whose likelihood after it is the document's relevance."""


@dataclass(frozen=True)
class ScoredText:
    """Likelihood of a text after another.

    Attributes
    ----------
    logprob : of all its tokens. tokens : their number.
    """

    logprob: float
    tokens: int

    @property
    def mean(self) -> float:
        """Log-probability of a token, on average."""
        return self.logprob / self.tokens


@dataclass(frozen=True)
class ScoreRequest:
    """Texts to score, each after its context, as token ids."""

    served: ServedModel
    pairs: Sequence[tuple[list[int], list[int]]]

    @property
    def tokens(self) -> int:
        """Tokens of all texts."""
        return sum(len(context) + len(text) for context, text in self.pairs)

    def steps(self) -> Generator[list[ScoredText] | None, None, None]:
        """Compute the scores; yield None between steps, and all of them at last."""
        made = []
        for context, text in self.pairs:
            for found in prompt_logprob_steps(self.served.model.executable, context + text, 0):
                if found is None:
                    yield None
                    continue
                values = [one.logprobs.logprob for one in found[-len(text) :]]
                made.append(ScoredText(math.fsum(values), len(values)))
        yield made


@dataclass(frozen=True)
class RelevanceRequest:
    """Documents whose relevance a reranker gives, by one of `cortiq.model.rerank`'s methods."""

    served: ServedModel
    query: str
    documents: Sequence[str]
    method: str
    instruction: str

    @property
    def tokens(self) -> int:
        """Tokens of all pairs, as the model sees them."""
        model = self.served.model
        if self.method == YES_NO:
            made = [yes_no_ids(model, self.query, d, self.instruction) for d in self.documents]
            return sum(map(len, made))
        if self.method == COSINE:
            return sum(len(model.tokenizer.framed(t).ids) for t in (self.query, *self.documents))
        return sum(len(model.tokenizer.framed(self.query, d).ids) for d in self.documents)

    def steps(self) -> Generator[list[float] | None, None, None]:
        """Compute the scores; yield None between steps, and all of them at last."""
        model, made = self.served.model, []
        for found in reranked(model, self.query, self.documents, self.method, self.instruction):
            made += [] if found is None else [found]
            yield None
        yield made


class ScoreApi:
    """Handlers of the two paths."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def score(self, request: HttpRequest) -> Response:
        """Handle `POST /v1/score`: the likelihood of each `text_2` after its `text_1`."""
        fields = await self.service.body(request)
        served = await self.service.hold(request, model_name(fields))
        parsed = await self.service.read(request, lambda: parse_score(served, fields))
        scores = await self._scores(request, parsed)
        data = [
            {"index": index, "object": "score", "score": one.logprob, "mean": one.mean,
             "tokens": one.tokens}
            for index, one in enumerate(scores)
        ]  # fmt: skip
        return JSONResponse({**_head("score", parsed), "object": "list", "data": data})

    async def rerank(self, request: HttpRequest) -> Response:
        """Handle `POST /v1/rerank`: documents by their relevance to the query."""
        fields = await self.service.body(request)
        served = await self.service.hold(request, model_name(fields))
        documents = read_documents(fields)
        top, shown = fields.integer("top_n", 1, 2**31), fields.flag("return_documents", True)
        parsed = await self.service.read(request, lambda: parse_rerank(served, fields, documents))
        if isinstance(parsed, RelevanceRequest):
            request.state.facts["prompt_tokens"] = parsed.tokens
            scores = await self.service.compute(request, served.worker, parsed.steps())
        else:
            scores = [one.mean for one in await self._scores(request, parsed)]
        order = sorted(range(len(scores)), key=lambda index: (-scores[index], index))
        results = [
            {"index": index, "relevance_score": scores[index],
             **({"document": {"text": documents[index]}} if shown else {})}
            for index in order[:top]
        ]  # fmt: skip
        return JSONResponse({**_head("rerank", parsed), "results": results})

    async def _scores(self, request: HttpRequest, parsed: ScoreRequest) -> list[ScoredText]:
        request.state.facts["prompt_tokens"] = parsed.tokens
        found: list[ScoredText] = await self.service.compute(
            request, parsed.served.worker, parsed.steps()
        )
        return found

    def routes(self) -> list[Route]:
        """Return the routes, each with and without `/v1`."""
        made = []
        for prefix in ("/v1", ""):
            made.append(Route(f"{prefix}/score", self.score, methods=["POST"]))
            made.append(Route(f"{prefix}/rerank", self.rerank, methods=["POST"]))
        return made


def parse_score(served: ServedModel, fields: Fields) -> ScoreRequest:
    """Parse a request of `/v1/score`; one `text_1` may have many `text_2`, or each its own."""
    fields.text("model")
    firsts, seconds = (_texts(fields, name) for name in ("text_1", "text_2"))
    fields.close()
    if len(firsts) == 1:
        firsts = firsts * len(seconds)
    if len(firsts) != len(seconds):
        message = f"There are {len(firsts)} 'text_1' and {len(seconds)} 'text_2'."
        raise invalid(message, "text_2")
    pairs = list(zip(firsts, seconds, strict=True))
    return _score_request(served, pairs, ("text_1", "text_2"))


def parse_rerank(
    served: ServedModel, fields: Fields, documents: Sequence[str]
) -> ScoreRequest | RelevanceRequest:
    """Parse the rest of a request of `/v1/rerank`; `method` and `instruction` are our own fields.

    `auto` is the classifier of a cross-encoder, the cosine of an encoder's embeddings, and the
    query's likelihood with any other model.
    """
    fields.text("model")
    query = fields.text("query")
    if not query:
        raise fields.wrong("query", "a string, not empty")
    method = fields.choice("method", (*METHODS, LIKELIHOOD), AUTO)
    instruction = fields.text("instruction") or ""
    fields.close()
    encoder = encoder_of(served.model.program)
    if method not in (AUTO, LIKELIHOOD) or (method == AUTO and encoder is not None):
        for text in (query, *documents):
            served.check_size(text, "documents")
        method = method_for(served.model, method)
        return RelevanceRequest(served, query, documents, method, instruction)
    return _score_request(
        served, [(document + BETWEEN, query) for document in documents], ("documents", "query")
    )


def read_documents(fields: Fields) -> list[str]:
    """Return the documents of a request: texts, or objects with a `text`."""
    given, texts = fields.items("documents") or [], []
    if not 0 < len(given) <= MOST_PAIRS:
        expected = f"an array of 1 to {MOST_PAIRS} strings, or of objects with a 'text'"
        raise fields.wrong("documents", expected)
    for index, one in enumerate(given):
        inner = object_fields({"text": one} if isinstance(one, str) else one, f"documents[{index}]")
        text = inner.text("text")
        if text is None:
            raise inner.wrong("text", "a string")
        inner.close()
        texts.append(text)
    return texts


def _texts(fields: Fields, name: str) -> list[str]:
    expected = f"a string, or an array of 1 to {MOST_PAIRS} strings, none of them empty"
    value = fields.get(name, (str, list), expected)
    texts = [value] if isinstance(value, str) else value or []
    if not 0 < len(texts) <= MOST_PAIRS or not all(isinstance(t, str) and t for t in texts):
        raise fields.wrong(name, expected)
    return texts


def _score_request(
    served: ServedModel, pairs: Sequence[Pair], params: tuple[str, str]
) -> ScoreRequest:
    """Return texts and contexts as ids.

    Parameters
    ----------
    params : fields that contexts and texts come from.
    """
    model, found = EvaluationModel(served.model), []
    for pair in pairs:
        for text, param in zip(pair, params, strict=True):
            served.check_size(text, param)
        context, ids = model.pair_ids(*pair)
        if not ids:
            message = f"'{params[1]}' has no token of its own: the last of '{params[0]}' has it."
            raise invalid(message, params[1])
        if len(context) + len(ids) > served.model.context:
            raise too_long(len(context) + len(ids), served.model.context, params[0])
        found.append((context, ids))
    return ScoreRequest(served, found)


def _head(kind: str, parsed: ScoreRequest | RelevanceRequest) -> dict[str, Any]:
    """Return the parts that both responses have."""
    by = parsed.method if isinstance(parsed, RelevanceRequest) else "log-likelihood"
    return {
        "id": f"{kind}-{secrets.token_hex(12)}", "model": parsed.served.name,
        "created": int(time.time()), "method": by,
        "system_fingerprint": parsed.served.fingerprint,
        "usage": {"prompt_tokens": parsed.tokens, "total_tokens": parsed.tokens},
    }  # fmt: skip
