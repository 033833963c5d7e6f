"""How many functions a decoding row calls in a step: run without the interpreter, no GPU.

Launches are left out, and a captured graph does nothing. Prints, for each way to draw, the calls
that one more row adds to a step.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from types import SimpleNamespace

os.environ["TRITON_INTERPRET"] = "0"

import torch
from engines import TOKENIZER, engine, loaded, prompt, request

from cortiq.backend import CompileOptions
from cortiq.backend.seam import CheckedExecutable
from cortiq.numerics.masks import mask_of
from cortiq_triton.executable import TritonExecutable

MASK = mask_of(range(0, 320, 2), 320)
WAYS = {
    "greedy": {},
    "temperature": {"temperature": 0.8},
    "filters": {"temperature": 0.8, "top_k": 40, "top_p": 0.9},
    "penalties": {"repetition_penalty": 1.2},
    "masks": {"temperature": 0.8, "masked": True},
}
STEPS = 4


def without_launches():
    """Return an executable that computes nothing: every token is 0."""
    torch.empty, torch.Tensor.new_empty = torch.zeros, torch.Tensor.new_zeros
    torch.empty_like = torch.zeros_like
    for name, module in list(sys.modules.items()):
        if name.startswith("cortiq_triton.") and hasattr(module, "launch"):
            module.launch = lambda *given, **how: None
    model = loaded("tiny-llama")
    options = CompileOptions(extra={"graphs": True})
    made = TritonExecutable(model.program, model.weights, options, "cpu")
    made.decoder.capture = lambda launch, device: SimpleNamespace(replay=lambda: None)
    return CheckedExecutable("triton", made)


def calls(on, count, options):
    """Return the calls of a step of so many sequences, all decoding."""
    options = dict(options)
    masks = (lambda ids: MASK) if options.pop("masked", False) else None
    counted = [0]

    def count_call(frame, event, argument):
        counted[0] += event in ("call", "c_call")

    with engine(on, sequences=count) as busy:
        made = [
            busy.submit(replace(request(prompt(n, 3), 40, **options), masks=masks))
            for n in range(count)
        ]
        while any(one.generated < 4 for one in made):
            busy.step()
        sys.setprofile(count_call)
        for _ in range(STEPS):
            busy.step()
        sys.setprofile(None)
    assert not any(one.error for one in made)
    return counted[0] / STEPS


def main():
    on = without_launches()
    assert TOKENIZER.vocab_size == 320
    for name, options in WAYS.items():
        few, many = (calls(on, count, options) for count in (32, 64))
        print(name, round((many - few) / 32))


if __name__ == "__main__":
    main()
