"""A model, opened, compiled for a backend, and ready to generate, score and chat."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from cortiq.arguments import event_of, function_of, list_of
from cortiq.backend import Executable
from cortiq.engine.drafting import Speculation
from cortiq.engine.output import Output
from cortiq.engine.overlay import ChosenOverlay
from cortiq.engine.prompt_images import ImageSpan
from cortiq.engine.request import (
    Masks,
    Request,
    make_request,
    vocabulary_size,
    with_embeddings,
    with_images,
    with_seed,
)
from cortiq.engine.session import Progress
from cortiq.engine.statistics import Statistics
from cortiq.errors import RequestError
from cortiq.hearing.encode import SoundEncoder
from cortiq.hearing.speech import SpeechTokens
from cortiq.ir import Program
from cortiq.model.adapters import AdapterMixin, Adapters
from cortiq.model.drafter_factory import DrafterFactory
from cortiq.model.facts import ModelFacts
from cortiq.model.fingerprint import node_counts
from cortiq.model.generation import Generation, Stream, identity_of, note_of, serve_batch, serve_one
from cortiq.model.hearing import Hearing, SoundPrompt
from cortiq.model.prefixes import PrefixCacheMixin
from cortiq.model.prompts import Prompt, PromptMixin
from cortiq.model.scoring import ScoringMixin
from cortiq.model.sight import ImagePrompt, Senses, Sight, encoder_of
from cortiq.model.source import ModelSource
from cortiq.model.transcribe import HearingMixin
from cortiq.numerics.contract import CONTRACT_VERSION
from cortiq.options import GenerateOptions, LoadOptions
from cortiq.receipts.record import make_receipt
from cortiq.tokenizer.tokenizer import Tokenizer


class Model(ModelFacts, AdapterMixin, PromptMixin, PrefixCacheMixin, ScoringMixin, HearingMixin):
    """A model on a backend; made by `load`, a context manager that closes it.

    Any thread may call it, but it does one thing at a time: a call made while a stream or another
    call is running raises RequestError. `generate_many` and `AsyncModel` are for several.

    Attributes
    ----------
    name : what it was loaded as. program : its graphs. tokenizer : text to ids and back.
    executable : the compiled program. backend, device : names of what computes it.
    options : how it was loaded. usual : sampling where a call says nothing. drafts : its drafters.
    senses : what it has images and sounds in its prompts with: images where it was loaded with
        images=True.
    hearing : what it hears sounds with; None for a model of another kind.
    file_type : the quantisation that its files name, such as Q4_K_M; empty where they name none.
    notes : lines about what its files ask for and is not done, or why its weights are not kept.
    """

    def __init__(
        self,
        name: str,
        source: ModelSource,
        executable: Executable,
        backend: str,
        device: str,
        options: LoadOptions,
        towers: Sequence[Executable] = (),
    ) -> None:
        self.name, self.executable = name, executable
        self.program: Program = executable.program
        self.tokenizer: Tokenizer = source.tokenizer
        self.backend, self.device, self.options = backend, device, options
        self._source, self.usual, self.drafts = source, source.usual, DrafterFactory(self)
        self.file_type, self.load_seconds = source.file_type, 0.0
        self.notes: tuple[str, ...] = source.notes
        self._busy, self._closed = threading.Lock(), False
        budget = options.adapter_memory
        self.adapters = Adapters(executable, source, None if budget is None else budget << 20)
        self.hearing: Hearing | None = None
        towers = list(towers)
        if source.hearing is not None:
            tower = towers.pop(0)
            given, size = source.hearing.settings, vocabulary_size(self.program)
            speech = SpeechTokens.of(self.tokenizer, given, size, source.eos_ids)
            self.hearing = Hearing(source.hearing, SoundEncoder(tower), speech)
        self.senses = Senses(
            Sight(sense, encoder_of(sense, tower), self.tokenizer, source.program.context)
            for sense, tower in zip(source.senses, towers, strict=True)
        )

    def generate(
        self,
        prompt: Prompt,
        *,
        on_text: Callable[[str], bool | None] | None = None,
        cancel: threading.Event | None = None,
        progress: Progress | None = None,
        masks: Masks | None = None,
        embeddings: np.ndarray | None = None,
        images: Iterable[Any] | None = None,
        **options: Any,
    ) -> Generation:
        """Generate from a raw text (the tokenizer's BOS, no template) or from token ids.

        Parameters
        ----------
        on_text : called with every piece of text as soon as it is certain; returning False cancels.
        cancel : ends the generation before its next step when it is set.
        progress : called with the prompt rows done and in all.
        masks : says which ids may come next (`engine.request.Masks`).
        embeddings : float32 [tokens, width], fed in place of the prompt's own `token_embeddings`:
            its ids are then labels, nothing is reused for it or of it, and there is no receipt.
        images : paths, bytes of files, arrays or images of Pillow, in the order of their places in
            the text, or before it (a model loaded with images=True).
        options : fields of `cortiq.GenerateOptions`; `help(cortiq.GenerateOptions)` lists them.

        Raises
        ------
        RequestError : prompt or options cannot be served; nothing was computed.
        SequenceFailedError : a value left the contract's domain.
        """
        cancel, on_text = event_of(cancel), function_of(on_text, "on_text")
        options |= {"progress": progress, "masks": masks, "embeddings": embeddings}
        options |= {"images": images}
        with self.stream(prompt, cancel=cancel, **options) as stream:
            for piece in stream:
                if on_text is not None and on_text(piece) is False:
                    cancel.set()
            return stream.generation

    def stream(
        self,
        prompt: Prompt,
        *,
        cancel: threading.Event | None = None,
        progress: Progress | None = None,
        masks: Masks | None = None,
        embeddings: np.ndarray | None = None,
        images: Iterable[Any] | None = None,
        **options: Any,
    ) -> Stream:
        """Yield the text of `generate` piece by piece; errors of the request are raised here.

        It takes what `generate` takes: see `help(cortiq.GenerateOptions)`.
        """
        chosen = with_seed(self.usual.options(options))
        if images is not None:
            given = prompt.ids if isinstance(prompt, ImagePrompt | SoundPrompt) else prompt
            prompt = self.image_prompt(given, images)
        request = with_embeddings(self.request_of(prompt, chosen, masks), embeddings, self.program)
        drafted, cancel = self.drafts.speculation(chosen), event_of(cancel)
        progress = function_of(progress, "progress")
        return Stream(self._steps(request, chosen, drafted, cancel.is_set, progress), cancel)

    def _steps(
        self,
        request: Request,
        options: GenerateOptions,
        drafted: Speculation | None,
        cancelled: Callable[[], bool],
        progress: Progress | None,
    ) -> Generator[str, None, Generation]:
        with self._working([request]):
            stats = Statistics(self.load_seconds, len(request.prompt))
            on = self.executable, self.tokenizer, self.prefixes
            output = yield from serve_one(*on, request, stats, drafted, progress, cancelled)
        return self.generation_of(request, options, output, stats)

    def generate_many(
        self,
        prompts: Iterable[Prompt],
        *,
        cancel: threading.Event | None = None,
        masks: Masks | None = None,
        adapters: Sequence[str | None] | None = None,
        **options: Any,
    ) -> list[Generation]:
        """Generate from each prompt, all computed together; each is as it is alone, to the bit.

        Parameters
        ----------
        adapters : of each prompt, in place of one for all.

        Raises
        ------
        RequestError : one of the prompts or an option cannot be served; nothing was computed.
        SequenceFailedError : a value of one of them left the contract's domain.
        """
        chosen, cancel = with_seed(self.usual.options(options)), event_of(cancel)
        listed = list_of(prompts, "generate_many", "give a list of texts, or of lists of ids")
        names = [chosen.adapter] * len(listed) if adapters is None else list(adapters)
        if len(names) != len(listed):
            what = f"{len(names)} adapters for {len(listed)} prompts"
            raise RequestError(what, where="adapters", hint="name one for each, or None")
        each = [replace(chosen, adapter=name) for name in names]
        requests = [self.request_of(p, o, masks) for p, o in zip(listed, each, strict=True)]
        drafted = self.drafts.speculation(chosen)
        with self._working(requests):
            on = self.executable, self.tokenizer, self.prefixes
            served = serve_batch(*on, requests, self.load_seconds, drafted, cancel.is_set)
        made = zip(served, each, strict=True)
        return [self.generation_of(s.request, o, s.output, s.stats) for s, o in made]

    def request_of(self, prompt: Prompt, options: GenerateOptions, masks: Masks | None) -> Request:
        """Return a request of a prompt and its options, checked."""
        if options.stop and self.tokenizer.absent:
            raise self.tokenizer.absent
        spans = prompt.spans if isinstance(prompt, ImagePrompt) else ()
        ids, longest = self.ids(prompt), self._source.longest
        made = make_request(ids, options, self.program, self.eos_ids, longest, masks)
        made = self.with_media(made, spans, self.adapters.named(options.adapter))
        return replace(made, encoded=prompt.encoded) if isinstance(prompt, SoundPrompt) else made

    def with_media(
        self, request: Request, spans: Sequence[ImageSpan], overlay: ChosenOverlay | None
    ) -> Request:
        """Return a request with images and sounds in its prompt, and the adapter that it chose, or
        the model's own for these.
        """
        overlay = self.adapters.of_media({span.medium for span in spans}, overlay)
        return replace(with_images(request, spans, self.program), overlay=overlay)

    def generation_of(
        self, request: Request, options: GenerateOptions, output: Output, stats: Statistics
    ) -> Generation:
        """Return what a finished request made; whoever ran an engine of this model calls it."""
        return Generation(
            text="".join(output.pieces),
            token_ids=tuple(output.token_ids),
            finish_reason=output.finish_reason,
            backend=self.backend,
            device=self.device,
            placement=node_counts(self.program, self.placement),
            seed=request.sampling.seed if options.temperature > 0 else None,
            contract=CONTRACT_VERSION,
            digest=output.digest.hex(),
            stats=stats,
            note=note_of(request, output),
            confidence=tuple(output.confidence),
            trace=tuple(output.trace),
            prompt_ids=request.prompt,
            options=options,
            step_digests=tuple(output.step_digests),
            record=lambda made: make_receipt(made, self, request),
            identity=lambda: identity_of(self.model_hash, self.fingerprint, options, request),
        )

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"on {self.backend}:{self.device}"
        family = self.program.facts.get("family", "model")
        return f"<Model {self.name}: {family}, context {self.context}, {state}>"

    @contextmanager
    def _working(self, requests: Sequence[Request] = ()) -> Iterator[None]:
        closed = RequestError("the model is closed", where=self.name)
        if self._closed:
            raise closed
        if not self._busy.acquire(blocking=False):
            hint = "finish or close it first; for several at once: generate_many, cortiq.load_async"
            raise RequestError("the model is busy with another stream", where=self.name, hint=hint)
        try:
            for request in requests:
                self.adapters.sync(request.overlay)
            yield
        except RequestError as error:  # perhaps because it was closed meanwhile
            raise (closed if self._closed else error) from error.__cause__
        finally:
            self._busy.release()

    def close(self) -> None:
        """Free weights, sequences and files; the model is unusable afterwards."""
        if not self._closed:
            self._closed = True
            self.drafts.close()
            self.drop_prefixes()
            self.senses.close()
            if self.hearing is not None:
                self.hearing.encoder.close()
            self.executable.close()
            self._source.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
