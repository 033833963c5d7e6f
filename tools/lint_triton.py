"""Compile the Triton backend's kernels for absent GPUs and lint their PTX.

Batches of small models are walked through with every launch recorded instead of run: what a value
holds does not matter, only which kernels meet which types and compile-time constants. Exit 1 if a
kernel does not compile, holds what it must not, or if nothing was recorded.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "backends/triton"))
os.environ["TRITON_INTERPRET"] = "0"  # interpreted kernels cannot be compiled

import numpy as np
import ptx
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource

from cortiq.backend import Argmax, Batch, CompileOptions, Digest, Draw, Row, Top
from cortiq.ir import Program
from cortiq.ir.overlay_graphs import with_overlays
from cortiq.ir.overlays import OverlayChange, changeable, overlay_inputs
from cortiq.models import load_program
from cortiq.models.synthetic import open_synthetic
from cortiq.numerics.layouts import LAYOUTS, Weight
from cortiq.numerics.masks import mask_of
from cortiq.numerics.sampling import Sampling
from cortiq.numerics.synthetic import synthetic_weight
from cortiq.numerics.weights import convert
from cortiq_triton import executable, hopper_products, language, products, weights
from cortiq_triton.rows import quantise_rows

MODELS = {
    "tiny-llama": "w8", "tiny-gemma3": "Q8_0", "tiny-mixtral": "w16", "tiny-lfm2": "Q4_1",
    "tiny-mimo": "f32", "tiny-mtp": "w8b256", "mini-qwen3_next": "w8", "mini-minicpm3": "w8",
    "mini-deepseek_v32": "w8",
}  # fmt: skip
"""Models and layouts that reach most kernels."""
WITH_OVERLAYS = "tiny-llama"
"""The model of which batches with overlays are computed, too."""
LAYOUTS_MULTIPLIED = "w8,Q4_0,Q4_1,Q8_0,Q4_K,Q6_K,Q3_K,MXFP4"
"""Layouts of which products are looked at by themselves; K-quants need rows of 256."""
SHAPES = ((256, 1024), (1, 256), (1, 512), (1, 768))
NARROW_SHAPES = ((1, 64), (1, 192), (1, 384))
"""Heights and widths of weights for Hopper's kernels: the smallest whose loops differ too, of one
piece of 256 columns, two and three; and for codes with a scale a row what is no multiple of that.
"""
TYPES = {
    torch.float32: "*fp32", torch.int32: "*i32", torch.int64: "*i64", torch.int8: "*i8",
    torch.int16: "*i16", torch.bool: "*i1",
}  # fmt: skip
ALIGNED = [["tt.divisibility", 16]]


@dataclass(frozen=True)
class Launch:
    """A recorded launch: argument types, specialisations, constants, options."""

    kernel: Any
    signature: tuple[tuple[str, str], ...]
    aligned: tuple[int, ...]
    constants: tuple[tuple[str, Any], ...]
    options: tuple[tuple[str, Any], ...]

    @property
    def name(self) -> str:
        """The kernel's name with its constants."""
        shown = ", ".join(f"{k}={getattr(v, '__name__', v)}" for k, v in self.constants)
        return f"{self.kernel.__name__}({shown})"

    def compiled(self, capability: int, fusion: bool = False) -> Any:
        """Compile the launch to PTX."""
        kind = GluonASTSource if self.kernel.is_gluon() else ASTSource
        source = kind(
            fn=self.kernel,
            signature=dict(self.signature),
            constexprs=dict(self.constants),
            attrs={(at,): ALIGNED for at in self.aligned},
        )
        options = dict(self.options) | {"enable_fp_fusion": fusion}
        return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


class LaunchRecorder:
    """Stands in for `language.launch`."""

    def __init__(self) -> None:
        self.launches: dict[Launch, None] = {}

    def __call__(
        self,
        kernel: Any,
        grid: Any,
        *given: Any,
        warps: int = 4,
        stages: int = 3,
        early: bool = False,
        registers: int = 0,
        **how: Any,
    ) -> None:
        """Record a launch."""
        aligned = []
        types, constants = dict.fromkeys(kernel.arg_names, "constexpr"), dict(how)
        for at, (parameter, value) in enumerate(zip(kernel.params, given, strict=False)):
            name = parameter.name
            if isinstance(value, torch.Tensor):
                types[name] = TYPES[value.dtype]
                aligned += [at] if value.data_ptr() % 16 == 0 else []
            elif isinstance(value, float):
                types[name] = "fp32"
            elif parameter.do_not_specialize:
                types[name] = "i32"
            elif value == 1:
                constants[name] = 1
            else:
                types[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
                aligned += [at] if value % 16 == 0 else []
        limit = (("maxnreg", registers),) if registers else ()
        options = (("num_warps", warps), ("num_stages", stages), *limit)
        found = (tuple(types.items()), tuple(aligned), tuple(constants.items()), options)
        self.launches[Launch(kernel, *found)] = None


def recorded(models: Iterable[str], layouts: Iterable[str]) -> list[Launch]:
    """Record the launches of batches of these models, and of products with these weight layouts."""
    recorder, original = LaunchRecorder(), language.launch
    for module in list(sys.modules.values()):
        if getattr(module, "launch", None) is original:
            module.launch = recorder  # type: ignore[attr-defined]
    for model in models:
        name, _, layout = model.partition("?")
        _walk(name, layout or MODELS[name])
    for layout in layouts:
        _multiply(layout, 256, 1024)
        with _on_hopper():
            narrow = () if LAYOUTS[layout].block else NARROW_SHAPES
            for height, width in (*SHAPES, *narrow):
                _multiply(layout, height, width)
    return list(recorder.launches)


@contextmanager
def _on_hopper() -> Iterator[None]:
    """Have products as on a Hopper GPU."""
    before, hopper_products.available = hopper_products.available, lambda: True  # type: ignore[assignment]
    try:
        yield
    finally:
        hopper_products.available = before


def _multiply(layout: str, height: int, width: int) -> None:
    """Launch products with a weight of a layout, for one row and for more, and a look-up."""
    weight = synthetic_weight(layout, "weight", 1, (height, width))
    packed = weights.pack(weight, "weight", "cpu")
    for rows in (1, 9, 24, 48, 256):
        x, faults = quantise_rows(torch.ones(rows, width)), torch.zeros(rows, dtype=torch.int32)
        products.product(packed, x, rows, faults, products.Stack(products.PLAIN, height))
    products.look_up(packed, torch.zeros(2, dtype=torch.int32), torch.zeros(2, dtype=torch.int32))


def _walk(name: str, layout: str) -> None:
    loaded = load_program(open_synthetic(f"synthetic:{name}?format={layout}"), context=None)
    made = executable.TritonExecutable(loaded.program, loaded.weights, CompileOptions(), "cpu")
    ids = loaded.program.trunk.values["logits"].shape[0]
    filters = Sampling(top_k=9, top_p=0.9, presence_penalty=0.5, logit_bias={1: 0.5})
    draws = (Draw(Sampling(seed=1)), Draw(filters, mask=mask_of(range(9), ids)))
    for length, drawn in ((70, draws[:1]), (1, draws[1:]), (1, draws[:1])):
        wants = (Argmax(), Digest("logits"), Top(3), *drawn)
        states = [made.open(256) for _ in range(2)]
        for rows in (length, 1):
            _forward(made, states, rows, wants)
        for state in states:
            state.release()
    if name == WITH_OVERLAYS:
        _walk_overlays(made, loaded.program, loaded.weights)


def _forward(made: Any, states: Sequence[Any], rows: int, wants: Any, **given: Any) -> None:
    """Compute so many rows of each sequence, whose last wants something."""
    batch = []
    for state in states:
        start = state.length()
        batch += [Row(state, start + i, 1, **given) for i in range(rows - 1)]
        batch += [Row(state, start + rows - 1, 1, wants, **given)]
    made.forward(Batch(batch)).result()


def _walk_overlays(made: Any, program: Program, weights: Mapping[str, Weight]) -> None:
    """Compute rows whose products overlays change: a few, and a tile."""
    products = {key: OverlayChange(4) for key in changeable(program) if not key[1]}
    varied = with_overlays(program, 3, products)
    banks = {}
    for name in varied.weights.keys() - weights.keys():
        *more, columns = varied.weights[name].shape
        zeros = np.zeros((math.prod(more), columns), np.float32)
        banks[name] = convert(Weight.from_floats(zeros), "w16", name)
    made.vary(varied, {**weights, **banks})
    state = made.open(64)
    for rows in (1, 20):
        _forward(made, [state], rows, (Argmax(),), inputs=overlay_inputs(1))
    state.release()


def findings(
    launches: Sequence[Launch], capabilities: Sequence[int], fusion: bool = False
) -> Iterator[tuple[str, str]]:
    """Yield each launch for each GPU with its problems, if any."""
    for launch in launches:
        for capability in capabilities:
            if launch.kernel.is_gluon() and capability != 90:
                continue
            try:
                wrong = ptx.breaches(launch.compiled(capability, fusion).asm["ptx"])
            except Exception as error:
                wrong = [f"does not compile: {_innermost(error)}"]
            yield f"sm_{capability} {launch.name}", "; ".join(wrong)


def _innermost(error: BaseException) -> str:
    """Return the innermost cause of a compiler error."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {str(error)[-400:]}"


def main(arguments: list[str] | None = None) -> int:
    """Record, compile, lint."""
    parser = argparse.ArgumentParser(prog="tools/lint_triton.py", description=__doc__)
    parser.add_argument("--targets", default="80,90", help="compute capabilities")
    parser.add_argument("--models", default=",".join(MODELS), help="names, perhaps ?LAYOUT each")
    parser.add_argument("--layouts", default=LAYOUTS_MULTIPLIED, help="of products of their own")
    parser.add_argument("--fusion", action="store_true", help="let the compiler fuse: must fail")
    parser.add_argument("--only", default="", help="kernels whose name begins so")
    options = parser.parse_args(arguments)
    launches = recorded(*(filter(None, t.split(",")) for t in (options.models, options.layouts)))
    chosen = [launch for launch in launches if launch.name.startswith(options.only)]
    bad = 0
    for name, wrong in findings(chosen, list(map(int, options.targets.split(","))), options.fusion):
        print(f"{name}: {wrong or 'clean'}", flush=True)
        bad += bool(wrong)
    print(f"{len(chosen)} launches, {bad} findings")
    return int(bad > 0 or not chosen)


if __name__ == "__main__":
    sys.exit(main())
