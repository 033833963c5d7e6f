"""Recomputation of a claim: all rows at once, committed one by one as in a generation."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from cortiq.backend import Want
from cortiq.engine.accept import drawn_token
from cortiq.engine.output import Output
from cortiq.engine.overlay import ChosenOverlay
from cortiq.engine.request import Request, make_request, vocabulary_size, with_images
from cortiq.engine.session import Progress, RowResult, Session, digest_of
from cortiq.errors import RequestError, SequenceFailedError, shown
from cortiq.model.fingerprint import adapter_facts, drawing_facts, fingerprint
from cortiq.numerics.contract import CONTRACT_VERSION
from cortiq.numerics.digest import hexadecimal
from cortiq.receipts.claimed_images import claimed_images, supplied_rows, whole_chunks
from cortiq.receipts.claimed_sound import claimed_sound
from cortiq.receipts.difference import Difference, Verification, field_difference
from cortiq.receipts.record import RECORDED, Claim, Receipt

if TYPE_CHECKING:
    from cortiq.model.model import Model

Result = TypeVar("Result")
CANCELLED = "cancelled"
"""The one finish reason that recomputation cannot show; the tokens before it are verified."""
MAX_LOGITS = 1 << 25
"""Most logits of a batch, 128 MiB of them. No bit depends on it."""


def contract_differences(claim: Claim) -> list[Difference]:
    """Return a difference if the claim names another version of the contract."""
    if claim.contract == CONTRACT_VERSION:
        return []
    return [field_difference("contract", claim.contract, CONTRACT_VERSION)]


def edited_fields(receipt: Receipt) -> list[Difference]:
    """Return the fields that do not match their seals."""
    found = []
    for name, seal in receipt.claim.seals().items():
        if receipt.seals[name] != seal:
            sentence = f"{name} is not what the receipt was made with: its seal differs"
            found.append(Difference(name, sentence, None, receipt.seals[name], seal))
    return found


def verify_on(
    model: Model,
    receipt: Receipt,
    progress: Progress | None = None,
    images: Iterable[Any] = (),
    audio: Any = None,
) -> Verification:
    """Verify a receipt's claim on this model; `cortiq.verify` checks the signature."""
    return _result_of(verification_steps(model, receipt, progress, images, audio))


def _result_of(steps: Generator[None, None, Result]) -> Result:
    """Return what a generator returns after all its steps."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result


def verification_steps(
    model: Model,
    receipt: Receipt,
    progress: Progress | None = None,
    images: Iterable[Any] = (),
    audio: Any = None,
) -> Generator[None, None, Verification]:
    """Verify a receipt's claim, and yield after each part of it that was computed.

    Raises
    ------
    RequestError : the claim is about images or a sound, and they are not given: there is no
        verdict.
    """
    if not isinstance(receipt, Receipt):
        what = f"expected a receipt, not {shown(receipt)}"
        raise RequestError(what, where="verify", hint="cortiq.verify takes a file's name")
    started = time.perf_counter()
    claim = receipt.claim
    found = contract_differences(claim) or _model_differences(model, claim)
    steps = 0
    if not found:
        replayed = ClaimReplay(model, claim, progress, list(images), audio)
        found = yield from replayed.differences()
        steps = replayed.steps
    seconds = time.perf_counter() - started
    found = _in_order(found, edited_fields(receipt))
    return Verification(tuple(found), steps, model.backend, model.device, seconds)


def _in_order(found: list[Difference], edited: list[Difference]) -> list[Difference]:
    """Sort differences: steps first, then edited fields, then what follows from them."""
    named, by_seal = {d.field for d in found}, {d.field for d in edited}
    at_steps = [d for d in found if d.step is not None]
    fields = [d for d in found if d.step is None]
    edits = [d for d in fields if d.field in by_seal]
    edits += [d for d in edited if d.field not in named]
    return [*at_steps, *edits, *(d for d in fields if d.field not in by_seal)]


def _model_differences(model: Model, claim: Claim) -> list[Difference]:
    """Return differences of the model, without which tokens cannot be equal."""
    facts = {
        "model_hash": model.model_hash,
        "context": model.context,
        "weight_format": model.options.weight_format,
        "end_ids": model.eos_ids,
    }
    return [
        field_difference(name, getattr(claim, name), value)
        for name, value in facts.items()
        if getattr(claim, name) != value
    ]


@dataclass
class ClaimReplay:
    """Recomputes a claim.

    Attributes
    ----------
    images : those of the prompt, in order. audio : the sound that it hears, or a list of those in
        the prompt; None for none.
    steps : draws found identical so far.
    overlay : the claim's adapter; held, so that it may be unloaded meanwhile.
    """

    model: Model
    claim: Claim
    progress: Progress | None = None
    images: list[Any] = field(default_factory=list)
    audio: Any = None
    steps: int = field(default=0, init=False)
    overlay: ChosenOverlay | None = field(default=None, init=False)

    def differences(self) -> Generator[None, None, list[Difference]]:
        """Return the first step that differs, or the differences of the rest of the claim.

        It yields between the parts of the computation.
        """
        claim, model = self.claim, self.model
        options = replace(claim.options, seed=claim.options.seed or 0)  # none at temperature 0
        try:
            request = make_request(claim.prompt_ids, options, model.program, claim.end_ids)
        except RequestError as error:
            return [_refused_request(error)]
        media, audio = [("image", one) for one in self.images], self.audio
        if audio is not None and model.has_medium("audio"):  # sounds in the prompt
            sounds, audio = audio if isinstance(audio, list) else [audio], None
            media += [("audio", one) for one in sounds]
        seen = claimed_images(model, claim, media)
        if isinstance(seen, Difference):
            return [seen]
        heard = claimed_sound(model, claim, audio)
        if isinstance(heard, Difference):
            return [heard]
        request = replace(with_images(request, seen, model.program), encoded=heard)
        self.overlay = model.adapters.claimed(claim.adapter)
        request = replace(request, overlay=self.overlay)
        model.adapters.sync(self.overlay)
        output = Output(request, model.tokenizer)
        found = yield from self._draws(request, output)
        return found or self._ending(output) or self._results(output)

    def _draws(self, request: Request, output: Output) -> Generator[None, None, list[Difference]]:
        """Commit the recomputed draws, up to the first that is not the claim's."""
        vocabulary = vocabulary_size(self.model.program)
        try:
            with closing(self._rows(request, vocabulary)) as rows:
                for made in rows:
                    if made is None:
                        yield
                        continue
                    drawn, row = made
                    token = drawn_token(drawn, vocabulary)
                    output.commit(token, row)
                    found = self._at_this_step(token, row)
                    if found:
                        return found
                    self.steps += 1
                    if output.finish_reason:
                        break
        except SequenceFailedError as error:
            sentence = f"step {self.steps} or one soon after it cannot be computed: {error.what}"
            return [Difference("digests", sentence, self.steps)]
        return []

    def _rows(
        self, request: Request, vocabulary: int
    ) -> Generator[tuple[Any, RowResult] | None, None, None]:
        """Yield the draw of each row that the claim drew a token in, with the row's results.

        None stands between the rows that were computed together.

        Tokens outside the vocabulary are left out, with all that follow them.
        """
        tokens = self.claim.token_ids[: request.max_tokens]
        possible = next((i for i, t in enumerate(tokens) if t >= vocabulary), len(tokens) - 1)
        ids = [*request.prompt, *tokens[:possible]]
        fed = [request.fed(at, token) for at, token in enumerate(ids)]
        last, images = len(request.prompt) - 1, request.images
        silent = last if images is None else images.whole_rows(0, last)
        silent = silent if silent <= last else 0
        chunk_rows = request.chunk_rows or self.model.executable.batch_rows
        room = max(len(ids), request.room)
        with Session(self.model.executable, room) as session:
            if request.attended is not None:
                request.attended.store(self.model.executable, session.state)
            for start, end in whole_chunks(request, 0, silent, chunk_rows):
                none: list[tuple[Want, ...]] = [()] * (end - start)
                session.read(
                    session.feed_each(fed[start:end], none, supplied_rows(request, start, end))
                )
                self._advance(end, len(ids))
                yield None
            chunk_rows = max(1, min(chunk_rows, MAX_LOGITS // vocabulary))
            for start, end in whole_chunks(request, silent, len(ids), chunk_rows):
                wants = [
                    (request.want_at(ids[: i + 1]), *request.captures) if i >= last else ()
                    for i in range(start, end)
                ]
                given = supplied_rows(request, start, end)
                rows = session.read_rows(session.feed_each(fed[start:end], wants, given))
                made = zip(wants, rows, strict=True)
                yield from ((row[want[0]], row) for want, row in made if want)
                self._advance(end, len(ids))
                yield None

    def _advance(self, done: int, rows: int) -> None:
        if self.progress is not None:
            self.progress(done, rows)

    def _at_this_step(self, token: int, row: RowResult) -> list[Difference]:
        """Compare logits and token of a step, logits first: the token is drawn from them."""
        claimed = hexadecimal(self.claim.digests[self.steps]), self.claim.token_ids[self.steps]
        found = hexadecimal(digest_of(row)), token
        names = ("digests", "the digest of the logits"), ("token_ids", "the token")
        return [
            Difference(
                field=name,
                sentence=f"step {self.steps}: {what} is {is_now}, the receipt says {was}",
                step=self.steps,
                claimed=was,
                found=is_now,
            )
            for (name, what), was, is_now in zip(names, claimed, found, strict=True)
            if was != is_now
        ]

    def _ending(self, output: Output) -> list[Difference]:
        """Compare the end of the text with the end of the claim's tokens."""
        step, claimed = self.steps, self.claim.finish_reason
        if step < len(self.claim.token_ids):
            ended = (
                f"step {step}: the text had ended ({output.finish_reason}), the receipt continues"
            )
            return [Difference("token_ids", ended, step, self.claim.token_ids[step])]
        if not output.finish_reason and claimed != CANCELLED:
            sentence = f"step {step}: the text continues, the receipt ends ({shown(claimed)})"
            return [Difference("finish_reason", sentence, step, claimed)]
        if not output.finish_reason:
            output.finish(CANCELLED)
        return []

    def _results(self, output: Output) -> list[Difference]:
        """Compare the fields that follow from the draws."""
        facts = {"model": self.model.fingerprint, **drawing_facts(self.claim.options)}
        facts |= adapter_facts(self.overlay)
        results = {
            "finish_reason": output.finish_reason,
            "text": "".join(output.pieces),
            "chain": output.digest.hex(),
            "fingerprint": fingerprint(facts),
        }
        return [
            field_difference(name, getattr(self.claim, name), value)
            for name, value in results.items()
            if getattr(self.claim, name) != value
        ]


def _refused_request(error: RequestError) -> Difference:
    """Return the difference of a request that the model refuses: its prompt or an option."""
    names = {"sampling": "options"} | {name: f"options.{name}" for name in RECORDED}
    name = names.get(error.where or "", "prompt_ids")
    return Difference(name, f"{name}: such a request is refused: {error.what}")
