"""A request: a prompt and its options, checked before any work is done."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from cortiq.backend import LATE, Argmax, Digest, Draw, Drawn, DrawnLogit, Named, Top, Want
from cortiq.engine.cache_roles import CachePoint
from cortiq.engine.masks import CheckedMasks, LogitMasks, narrowing
from cortiq.engine.masks import Masks as Masks
from cortiq.engine.overlay import ChosenOverlay, key_of
from cortiq.engine.prompt_embeddings import check_embeddings, copied_embeddings
from cortiq.engine.prompt_encoded import EncodedPrompt, check_encoded, compute_encoded
from cortiq.engine.prompt_ids import check_prompt as check_prompt
from cortiq.engine.prompt_ids import id_list as id_list
from cortiq.engine.prompt_ids import shorten_hint
from cortiq.engine.prompt_ids import vocabulary_size as vocabulary_size
from cortiq.engine.prompt_images import (
    ImageSpan,
    PromptImages,
    computed_images,
    with_spans,
)
from cortiq.errors import RequestError, shown
from cortiq.ir import Program
from cortiq.ir.encoded import last_encoded
from cortiq.ir.images import EMBED
from cortiq.numerics.sampling import Sampling
from cortiq.options import GenerateOptions

DIGEST, LOGITS = Digest("logits"), Named("logits")
SEED_BITS = 32
"""Bits of a random seed: enough to differ, few enough to type in again."""


@dataclass(frozen=True)
class Request:
    """A prompt and its checked options.

    Attributes
    ----------
    prompt : token ids.
    sampling : how tokens are drawn; its seed is the one reported.
    greedy : whether every token is the plain argmax of the logits.
    max_tokens : tokens to generate at most, already cut to what the context has room for.
    end_ids : ids after which generation ends.
    stop : texts before which it ends.
    chunk_rows : most prompt rows a batch; None for as many as it has.
    note : what the caller should know about the limits.
    choice : number of the completion: others of the same seed draw other tokens.
    confidence, trace : whether each token's probability, and a row about it, are kept.
    calibration : temperature of that probability's softmax.
    loop_tokens : the text ends as a loop when so many last tokens repeat; 0 is never.
    embeddings : float32 [prompt, width] fed in place of the prompt's embeddings; ids are then only
        labels, and nothing is reused for such a prompt or of it.
    images : what rows supply because of images in the prompt (`PromptImages`).
    encoded : rows of an encoder that its rows attend to; None for none.
    cache_points : prompt positions worth keeping the sequence's state at, for later prompts.
    masks : which ids may follow a text (`Masks`).
    top_logprobs : tokens whose log-probability is kept beside that of each token drawn; None keeps
        none at all.
    shown_ids : control tokens that are part of the text, which else shows none.
    overlay : the adapter it chose; None for none.
    """

    prompt: tuple[int, ...]
    sampling: Sampling
    greedy: bool
    max_tokens: int
    end_ids: frozenset[int]
    stop: tuple[str, ...]
    chunk_rows: int | None
    note: str = ""
    choice: int = 0
    confidence: bool = False
    trace: bool = False
    calibration: float = 1.0
    loop_tokens: int = 0
    embeddings: npt.NDArray[np.float32] | None = field(default=None, compare=False)
    images: PromptImages | None = field(default=None, compare=False, repr=False)
    encoded: EncodedPrompt | None = field(default=None, compare=False, repr=False)
    cache_points: tuple[CachePoint, ...] = ()
    masks: Masks | None = None
    top_logprobs: int | None = None
    shown_ids: frozenset[int] = frozenset()
    overlay: ChosenOverlay | None = field(default=None, compare=False)

    @property
    def supplies(self) -> bool:
        """Whether its rows supply values."""
        return any(x is not None for x in (self.embeddings, self.images, self.encoded))

    @property
    def prefix_key(self) -> str:
        """Key of all that decides the bits of its rows beside its ids."""
        heard = "" if self.encoded is None else self.encoded.digest
        return key_of(self.overlay) + (f"|{heard}" if heard else "")

    @property
    def attended(self) -> EncodedPrompt | None:
        """Rows of an encoder that its rows attend to: of a sound, or of images beside the text."""
        return self.encoded or (None if self.images is None else self.images.attended)

    @property
    def room(self) -> int:
        """Rows that some slot of its sequence needs."""
        return max(self.limit, 0 if self.attended is None else self.attended.count)

    @property
    def image_digests(self) -> tuple[str, ...]:
        """SHA-256, in hex, of each image in its prompt as the model sees it."""
        return () if self.images is None else tuple(span.digest for span in self.images.spans)

    def inputs(self, position: int) -> dict[str, np.ndarray]:
        """Return what the row at a position supplies."""
        found = self.images.inputs(position) if self.images is not None else {}
        if self.embeddings is not None and position < len(self.embeddings):
            found[EMBED] = self.embeddings[position]
        return found | ({} if self.encoded is None else last_encoded(self.encoded.count))

    def fed(self, position: int, token: int | Drawn) -> int | Drawn:
        """Return the id that the row at a position is fed as."""
        return token if self.images is None else self.images.fed(position, token)

    @cached_property
    def narrowing(self) -> LogitMasks | None:
        """Its masks, if a row's logits narrow them."""
        return narrowing(self.masks)

    @cached_property
    def want(self) -> Want:
        """Want of the next token."""
        return Argmax() if self.greedy else Draw(self.sampling, self.choice)

    @cached_property
    def late_wants(self) -> tuple[Want, ...]:
        """Outputs of a row whose mask comes once the ids before are known."""
        return Draw(self.sampling, self.choice, LATE), *self.captures

    def want_at(self, history: Sequence[int]) -> Want:
        """Return the want of the token after these ids, drafted ones among them."""
        mask = self.masks(history) if self.masks else None
        return self.want if mask is None else Draw(self.sampling, self.choice, mask)

    def allows(self, history: Sequence[int], token: int) -> bool:
        """Return whether a token may follow these ids: a mask excludes ids that are never drawn."""
        mask = self.masks(history) if self.masks else None
        return mask is None or bool(mask[token // 8] >> token % 8 & 1)

    @cached_property
    def captures(self) -> tuple[Want, ...]:
        """Further outputs of each row that draws: the digest, and logits where they are needed."""
        captures: dict[Want, None] = {DIGEST: None}
        if self.confidence or self.trace:
            captures[DrawnLogit(self.calibration)] = None
        if self.top_logprobs is not None:
            captures |= dict.fromkeys((DrawnLogit(), Top(max(1, self.top_logprobs))))
        if self.narrowing is not None:
            captures[LOGITS] = None
        return tuple(captures)

    @cached_property
    def wants(self) -> tuple[Want, ...]:
        """Outputs of a row that draws without a mask; one object, which is checked once."""
        return self.want, *self.captures

    @property
    def limit(self) -> int:
        """Positions the sequence needs: the last token generated is never fed."""
        return len(self.prompt) + self.max_tokens - 1


def checked_request(request: Request, program: Program) -> Request:
    """Return the request with checked masks; they are the caller's.

    Raises
    ------
    RequestError : it is no request, or its embeddings do not fit the prompt.
    """
    if not isinstance(request, Request):
        what = f"a request is wanted, not {shown(request)}"
        hint = "cortiq.engine.request.make_request makes one of token ids"
        raise RequestError(what, where="submit", hint=hint)
    check_embeddings(request.embeddings, len(request.prompt), program)
    images = computed_images(request.images, request.prompt, program)
    check_encoded(request.encoded, program)
    compute_encoded(request.encoded, program)
    if images is not request.images:
        request = replace(request, images=images)
    if request.masks is None:
        return request
    return replace(request, masks=CheckedMasks(request.masks, vocabulary_size(program)))


def with_embeddings(request: Request, rows: object, program: Program) -> Request:
    """Return the request with a copy of these embeddings, which must fit its prompt."""
    copied = copied_embeddings(rows, len(request.prompt), program)
    return request if copied is None else replace(request, embeddings=copied)


def with_images(request: Request, spans: Sequence[ImageSpan], program: Program) -> Request:
    """Return the request with images whose rows stand in for ids of its prompt."""
    if not spans:
        return request
    made = with_spans(request.images, program, len(request.prompt), spans)
    return replace(request, images=made)


def make_request(
    ids: Sequence[int],
    options: GenerateOptions,
    program: Program,
    eos_ids: Iterable[int],
    longest: int = 0,
    masks: Masks | None = None,
) -> Request:
    """Check a prompt and its options against the program.

    Parameters
    ----------
    options : without a seed one is drawn; the request's `sampling` tells it.
    longest : context the model can be loaded with, for the hint.
    masks : which ids may follow a text.

    Raises
    ------
    RequestError : the prompt is empty, too long or out of the vocabulary, or so is an option.
    """
    prompt = check_prompt(ids, program, longest, heard=True)
    if masks is not None and not callable(masks):
        what = f"masks is a function of the ids so far, not {shown(masks)}"
        raise RequestError(what, where="masks")
    vocabulary = vocabulary_size(program)
    for name in ("logit_bias", "stop_ids"):
        for token in getattr(options, name) or ():
            if token >= vocabulary:
                message = f"token id {shown(token)} is outside the vocabulary of {vocabulary}"
                raise RequestError(message, where=name)
    check_stop(options)
    room = program.context - len(prompt)
    if room == 0:
        raise RequestError(
            f"the prompt fills the context of {program.context} tokens: no room to generate",
            hint=shorten_hint(program, longest),
        )
    note = f"the context of {program.context} tokens is full" if room < options.max_tokens else ""
    ends = set(options.stop_ids) | (set() if options.ignore_eos else set(eos_ids))
    sampling = sampling_of(with_seed(options))
    return Request(
        prompt=prompt,
        sampling=sampling,
        greedy=is_greedy(options),
        max_tokens=min(room, options.max_tokens),
        end_ids=frozenset(ends),
        stop=options.stop,
        chunk_rows=options.chunk_rows,
        note=note,
        choice=options.choice,
        confidence=options.confidence,
        trace=options.trace,
        calibration=options.calibration,
        loop_tokens=options.loop_tokens,
        masks=masks,
    )


def check_stop(options: GenerateOptions) -> None:
    """Refuse a stop string that would end every text before it begins."""
    if "" in options.stop:
        raise RequestError("a stop string is empty", where="stop")


def with_seed(options: GenerateOptions) -> GenerateOptions:
    """Return the options with a seed: the given one, or a random one."""
    if options.seed is not None:
        return options
    return replace(options, seed=secrets.randbits(SEED_BITS))


def is_greedy(options: GenerateOptions) -> bool:
    """Return whether tokens are the argmax of the logits themselves: nothing drawn or adjusted."""
    adjusted = (
        bool(options.logit_bias)
        or options.repetition_penalty != 1.0
        or options.presence_penalty != 0.0
        or options.frequency_penalty != 0.0
    )
    return options.temperature == 0.0 and not adjusted


def sampling_of(options: GenerateOptions) -> Sampling:
    """Return the contract's sampling options; a seed must have been chosen (`with_seed`)."""
    values = {field.name: getattr(options, field.name) for field in fields(Sampling)}
    return Sampling(**values | {"logit_bias": dict(options.logit_bias or {})})
