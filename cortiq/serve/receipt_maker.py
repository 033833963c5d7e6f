"""Receipts of answers over HTTP: in the response, in a folder, signed with the server's key."""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from cortiq.engine.request import Request
from cortiq.engine.sequence import Sequence
from cortiq.errors import CortiqError
from cortiq.model.generation import Generation
from cortiq.receipts.record import Receipt
from cortiq.receipts.signing import load_private_key, sign
from cortiq.serve.errors import ApiError
from cortiq.serve.generation_job import GenerationJob
from cortiq.serve.logs import LOG
from cortiq.serve.options import ServeOptions
from cortiq.serve.parsed_request import ParsedRequest
from cortiq.tokenizer.detokenizer import Detokenizer, StopMatcher
from cortiq.tokenizer.tokenizer import Tokenizer


class ReceiptMaker:
    """Makes the receipts of a server.

    Raises
    ------
    CortiqError : the folder cannot be written, or the key cannot be read.
    """

    def __init__(self, options: ServeOptions) -> None:
        self._folder = None if options.receipts is None else _folder(Path(options.receipts))
        self._key = None if options.sign is None else load_private_key(Path(options.sign))

    def issue(self, parsed: ParsedRequest, job: GenerationJob, choice: int) -> Any:
        """Return the receipt of a finished choice if the request asks for it, else None.

        It is written to the folder, if there is one, whether it was asked for or not. An answer
        that masks restricted has none: recomputing it would take the masks.

        Raises
        ------
        ApiError : it cannot be written (500).
        """
        sequence = job.sequences.get(choice)
        wanted = parsed.params.receipt
        if sequence is None or sequence.request.masks is not None or not sequence.output.token_ids:
            return None
        if not wanted and self._folder is None:
            return None
        try:
            receipt = self._receipt(parsed, sequence)
            if self._folder is not None:
                receipt.write(self._folder / _file_name())
        except CortiqError as error:
            LOG.error("a receipt failed", exc_info=error)
            message = "The receipt of this answer could not be written."
            raise ApiError(500, message, "receipt_error") from error
        return receipt.as_object() if wanted else None

    def _receipt(self, parsed: ParsedRequest, sequence: Sequence) -> Receipt:
        receipt = generation_of(parsed, sequence).receipt()
        if self._key is None:
            return receipt
        return replace(receipt, signature=sign(receipt, self._key))


def generation_of(parsed: ParsedRequest, sequence: Sequence) -> Generation:
    """Return a finished sequence as the generation that `Model.generate` would have returned.

    Its text is without the control tokens that a server keeps to find calls and thinking.
    """
    model, request = parsed.served.model, sequence.request
    options = replace(parsed.params.options, choice=request.choice, seed=request.sampling.seed)
    made = model.generation_of(request, options, sequence.output, sequence.stats)
    if not request.shown_ids:
        return made
    return replace(made, text=plain_text(model.tokenizer, request, made.token_ids))


def plain_text(tokenizer: Tokenizer, request: Request, ids: tuple[int, ...]) -> str:
    """Return the text of drawn ids, control tokens left out, up to a stop string."""
    decoder, matcher = Detokenizer(tokenizer, continuation=True), StopMatcher(request.stop)
    pieces = []
    for token in ids:
        if token in request.end_ids:
            break
        piece, stopped = matcher.add(decoder.add(token))
        pieces.append(piece)
        if stopped:
            return "".join(pieces)
    return "".join(pieces) + matcher.add(decoder.finish())[0] + matcher.finish()


def _folder(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
        with (path / f".{secrets.token_hex(4)}").open("xb") as probe:
            Path(probe.name).unlink()
    except OSError as error:
        raise CortiqError(
            f"receipts cannot be written here: {error.strerror}", where=str(path)
        ) from None
    return path


def _file_name() -> str:
    """Return a new file's name; names sort by time."""
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(8)}.json"
