"""A model, opened, compiled for a backend, and ready to generate, score and chat."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from cortiq.backend import Executable
from cortiq.errors import RequestError, TokenizerError, shown
from cortiq.ir import Program
from cortiq.numerics.contract import CONTRACT_VERSION
from cortiq.options import GenerateOptions, LoadOptions, ScoreOptions, resolve
from cortiq.runtime.fingerprint import drawing_facts, fingerprint, model_facts
from cortiq.runtime.generate import Generation, Identity, Output, Stream, run
from cortiq.runtime.request import Request, make_request, with_seed
from cortiq.runtime.score import Score, score_ids
from cortiq.runtime.sequence import Progress
from cortiq.runtime.source import Source
from cortiq.runtime.statistics import Statistics
from cortiq.tokenizer.tokenizer import Tokenizer

Prompt = str | Iterable[int]
Message = Mapping[str, Any]


class Model:
    """A model on a backend; made by `load`, a context manager that closes it.

    One stream is computed at a time: starting a second one before the first has ended is an error.

    Attributes
    ----------
    name : what it was loaded as.
    program : its graphs.
    executable : the compiled program.
    tokenizer : text to ids and back.
    backend, device : names of what computes it.
    options : how it was loaded.
    """

    def __init__(
        self,
        name: str,
        source: Source,
        executable: Executable,
        backend: str,
        device: str,
        options: LoadOptions,
    ) -> None:
        self.name, self.executable = name, executable
        self.program: Program = executable.program
        self.tokenizer: Tokenizer = source.tokenizer
        self.backend, self.device, self.options = backend, device, options
        self.load_seconds = 0.0
        self._source = source
        self._busy = threading.Lock()
        self._closed = False

    @property
    def placement(self) -> Mapping[str, str]:
        """Which backend computes each node, by name of the node."""
        return self.executable.placement

    @property
    def declined(self) -> Mapping[str, str]:
        """Nodes that the backend declined and the reference computes, each with the reason."""
        from cortiq.runtime.place import declined_nodes

        return declined_nodes(self.executable)

    @property
    def context(self) -> int:
        """The longest sequence, prompt and answer together, in tokens."""
        return self.program.context

    @property
    def model_hash(self) -> str:
        """SHA-256, in hex, of the model's files (or of a synthetic model's definition)."""
        return self._source.model_hash()

    @property
    def fingerprint(self) -> str:
        """Hash of everything that decides the logits of given token ids (`fingerprint.py`)."""
        return fingerprint(model_facts(self.program, self.model_hash))

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The model's own end tokens: those of its files and of its tokenizer."""
        return tuple(sorted({*self._source.eos_ids, *self.tokenizer.eos_ids}))

    def generate(
        self,
        prompt: Prompt,
        *,
        on_text: Callable[[str], bool | None] | None = None,
        cancel: threading.Event | None = None,
        progress: Progress | None = None,
        **options: Any,
    ) -> Generation:
        """Generate from a raw text (the tokenizer's BOS, no template) or from token ids.

        Parameters
        ----------
        on_text : called with every piece of text as soon as it is certain; returning False cancels.
        cancel : ends the generation before its next step when it is set.
        progress : called with the prompt rows done and in all.
        options : fields of `cortiq.options.GenerateOptions`.

        Raises
        ------
        RequestError : prompt or options cannot be served; nothing was computed.
        SequenceFailedError : a value left the contract's domain.
        """
        cancel = cancel or threading.Event()
        with self.stream(prompt, cancel=cancel, progress=progress, **options) as stream:
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
        **options: Any,
    ) -> Stream:
        """The text of `generate` piece by piece; errors of the request are raised here."""
        chosen = with_seed(resolve(GenerateOptions, options))
        request = make_request(self.ids(prompt), chosen, self.program, self.eos_ids)
        cancel = cancel or threading.Event()
        return Stream(self._steps(request, chosen, cancel, progress), cancel)

    def _steps(
        self,
        request: Request,
        options: GenerateOptions,
        cancel: threading.Event,
        progress: Progress | None,
    ) -> Generator[str, None, Generation]:
        with self._working():
            stats = Statistics(self.load_seconds, len(request.prompt))
            output = Output(request, self.tokenizer)
            yield from run(self.executable, request, output, stats, cancel.is_set, progress)
        return self._generation(request, options, output, stats)

    def _generation(
        self, request: Request, options: GenerateOptions, output: Output, stats: Statistics
    ) -> Generation:
        def identity() -> Identity:
            facts = {"model": self.fingerprint, **drawing_facts(options)}
            return Identity(self.model_hash, fingerprint(facts))

        return Generation(
            text="".join(output.pieces),
            token_ids=tuple(output.token_ids),
            finish_reason=output.finish_reason,
            backend=self.backend,
            device=self.device,
            placement=dict(Counter(self.placement.values())),
            seed=request.sampling.seed,
            contract=CONTRACT_VERSION,
            digest=output.digest.hex(),
            stats=stats,
            note=request.note if output.finish_reason == "length" else "",
            identity=identity,
        )

    def score(self, text: Prompt, *, progress: Progress | None = None, **options: Any) -> Score:
        """Perplexity of a text or of token ids, in windows; see `cortiq.runtime.score`.

        Parameters
        ----------
        progress : called with the tokens done and in all.
        options : fields of `cortiq.options.ScoreOptions`.
        """
        chosen = resolve(ScoreOptions, options)
        ids = (
            self.tokenizer.encode(text, add_bos=False) if isinstance(text, str) else _id_list(text)
        )
        with self._working():
            return score_ids(self.executable, self.tokenizer, ids, chosen, progress)

    def ids(self, prompt: Prompt) -> list[int]:
        """Token ids of a raw text, with the tokenizer's BOS; token ids as they are.

        Raises
        ------
        RequestError : the text is empty.
        TokenizerError : it is not valid Unicode.
        """
        if not isinstance(prompt, str):
            return _id_list(prompt)
        if not prompt:
            raise RequestError("the prompt is empty", hint="give at least one character")
        return self.tokenizer.encode(prompt)

    def chat_ids(
        self, messages: Sequence[Message], *, template_options: Mapping[str, Any] | None = None
    ) -> list[int]:
        """Token ids of a conversation, rendered by the model's chat template.

        Parameters
        ----------
        messages : mappings with `role` and `content`.
        template_options : variables the template looks at, such as `enable_thinking`.

        Raises
        ------
        TokenizerError : the model has no chat template, or the template refuses the messages.
        """
        from cortiq.tokenizer.template import render

        template = self.tokenizer.chat_template()
        if template is None:
            raise TokenizerError(
                "the model has no chat template: it is a base model",
                where=self.name,
                hint="give it a raw text to continue instead of a conversation",
            )
        text = render(
            template,
            messages,
            options=template_options,
            bos_token=self.tokenizer.bos_token,
            eos_token=self.tokenizer.eos_token,
        )
        return self.tokenizer.encode(text, add_bos=False, parse_special=True)

    def chat(
        self,
        messages: Sequence[Message],
        *,
        template_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Generation:
        """`generate` from a conversation; takes everything `generate` takes."""
        ids = self.chat_ids(messages, template_options=template_options)
        return self.generate(ids, **options)

    @contextmanager
    def _working(self) -> Iterator[None]:
        if self._closed:
            raise RequestError("the model is closed", where=self.name)
        if not self._busy.acquire(blocking=False):
            raise RequestError(
                "the model is busy with another stream",
                where=self.name,
                hint="finish or close that stream first",
            )
        try:
            yield
        finally:
            self._busy.release()

    def close(self) -> None:
        """Free weights, sequences and files; the model is unusable afterwards."""
        if not self._closed:
            self._closed = True
            self.executable.close()
            self._source.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _id_list(ids: Iterable[int]) -> list[int]:
    """Ids as a list; bytes would pass for ids, and are a text that somebody forgot to decode."""
    if isinstance(ids, (bytes, bytearray)) or not isinstance(ids, Iterable):
        what = "a text or token ids are wanted"
        raise RequestError(f"{what}, not {shown(ids)}", where="prompt")
    return list(ids)
