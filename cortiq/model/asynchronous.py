"""A model for programs with an event loop: what is awaited runs in a thread of the model's own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any, TypeVar

from cortiq.model.generation import Generation
from cortiq.model.load import load
from cortiq.model.model import Model

if TYPE_CHECKING:
    import numpy as np

    from cortiq.model.chat import Message
    from cortiq.model.likelihood import Likelihood
    from cortiq.model.prompts import Prompt, TextPrompt
    from cortiq.model.score import Score

Result = TypeVar("Result")


class AsyncModel:
    """`Model` with awaitable methods, for one event loop; an asynchronous context manager.

    Calls wait for their turn, in the order in which they came. One whose task is cancelled ends
    its work before the next step of the model. (To have many requests computed together, hand them
    to `Model.generate_many`, or to an `Engine`.)

    Attributes
    ----------
    model : the model itself, for what takes no time: `tokenizer`, `ids`, `chat_ids`, `context`.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self._turn = asyncio.Lock()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="cortiq")

    async def generate(self, prompt: Prompt, **options: Any) -> Generation:
        """Call `Model.generate`."""
        cancel = options.setdefault("cancel", Event())
        return await self._in_turn(partial(self.model.generate, prompt, **options), cancel)

    async def generate_many(self, prompts: Iterable[Prompt], **options: Any) -> list[Generation]:
        """Call `Model.generate_many`."""
        cancel = options.setdefault("cancel", Event())
        return await self._in_turn(partial(self.model.generate_many, prompts, **options), cancel)

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        template_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Generation:
        """Call `Model.chat`."""
        prompt = self.model.chat_prompt(messages, template_options=template_options)
        return await self.generate(prompt, **options)

    def stream(self, prompt: Prompt, **options: Any) -> AsyncStream:
        """Call `Model.stream`; errors of the request are raised by the first step."""
        cancel = options.setdefault("cancel", Event())
        return AsyncStream(self, partial(self.model.stream, prompt, **options), cancel)

    async def score(self, text: TextPrompt, **options: Any) -> Score:
        """Call `Model.score`."""
        return await self._in_turn(partial(self.model.score, text, **options))

    async def likelihoods(
        self, context: TextPrompt, continuations: Sequence[Iterable[int]]
    ) -> tuple[Likelihood, ...]:
        """Call `Model.likelihoods`."""
        return await self._in_turn(partial(self.model.likelihoods, context, continuations))

    async def embed(self, prompt: TextPrompt | Sequence[TextPrompt], **options: Any) -> np.ndarray:
        """Call `Model.embed`."""
        return await self._in_turn(partial(self.model.embed, prompt, **options))

    async def close(self) -> None:
        """Wait for running calls, and free weights, sequences and files."""
        await self._in_turn(self.model.close)
        self._worker.shutdown()

    async def _in_turn(self, call: Callable[[], Result], cancel: Event | None = None) -> Result:
        async with self._turn:
            return await self._work(call, cancel)

    async def _work(self, call: Callable[[], Result], cancel: Event | None = None) -> Result:
        """Run in the model's thread; a cancelled task leaves only when the thread is free again."""
        done = asyncio.get_running_loop().run_in_executor(self._worker, call)
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            if cancel is not None:
                cancel.set()
            await asyncio.wait([done])
            raise

    async def __aenter__(self) -> AsyncModel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncStream(AsyncIterator[str]):
    """Text as it is generated: iterate over the pieces, then read `generation`.

    The turn is taken at the first piece, and given back at the end, by `aclose`, or by leaving an
    `async with` block.
    """

    def __init__(self, owner: AsyncModel, start: Callable[[], Any], cancel: Event) -> None:
        self._owner, self._start, self._cancel = owner, start, cancel
        self._generation: Generation | None = None
        self._pieces = self._steps()

    async def _steps(self) -> AsyncGenerator[str, None]:
        work = self._owner._work
        async with self._owner._turn:
            stream = await work(self._start)
            try:
                while (piece := await work(partial(next, stream, None), self._cancel)) is not None:
                    yield piece
                self._generation = stream.generation
            finally:
                await work(stream.close)

    async def __anext__(self) -> str:
        return await anext(self._pieces)

    @property
    def generation(self) -> Generation:
        """The result, once the iteration has ended."""
        if self._generation is None:
            raise ValueError("the stream has not ended; iterate over it first")
        return self._generation

    def cancel(self) -> None:
        """End the stream before its next step, with the finish reason `cancelled`."""
        self._cancel.set()

    async def aclose(self) -> None:
        """Free the sequence at once; there will be no `generation`."""
        await self._pieces.aclose()

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


async def load_async(name: str | os.PathLike[str], **options: Any) -> AsyncModel:
    """Load a model without blocking the event loop: arguments and errors of `cortiq.load`."""
    return AsyncModel(await asyncio.to_thread(partial(load, name, **options)))
