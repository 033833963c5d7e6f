"""A model on an event loop: tasks take turns, and a timeout ends the work."""

from __future__ import annotations

import asyncio
import sys

import cortiq


async def main(name: str) -> None:
    """Generate two answers, and a third that times out after half a second."""
    async with await cortiq.load_async(name) as model:
        first, second = await asyncio.gather(
            model.generate("The sea is", max_tokens=12),
            model.generate("The sky is", max_tokens=12),
        )
        print(first.text, second.text, sep="\n")
        try:
            async with asyncio.timeout(0.5):
                await model.generate("For ever and ever", max_tokens=5000, ignore_eos=True)
        except TimeoutError:
            print("[given up after half a second; the model is free again]")
        async with model.stream("And then", max_tokens=8) as stream:
            print("".join([piece async for piece in stream]))


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "smollm2"))
