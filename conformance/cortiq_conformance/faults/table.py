"""Every planted fault, and what finds it first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cortiq.backend.stored import StoredState
from cortiq_conformance.faults.choices import WRONG_CHOICES
from cortiq_conformance.faults.compressed import WRONG_COMPRESSION
from cortiq_conformance.faults.fault import Fault
from cortiq_conformance.faults.kernels import WRONG_KERNELS, Wrong
from cortiq_conformance.faults.ordered import (
    ANSWERS_IN_WRONG_ORDER,
    ATTEND,
    FOUNDATION,
    PRODUCTS,
    WRONG_ORDERS,
    faults,
)
from cortiq_conformance.faults.overlays import WRONG_OVERLAYS
from cortiq_conformance.faults.products import WRONG_PRODUCTS
from cortiq_conformance.faults.recurrences import WRONG_RECURRENCES, WRONG_RECURRENT_STATES
from cortiq_conformance.faults.roundings import WRONG_ROUNDINGS
from cortiq_conformance.faults.sums import WRONG_SUMS
from cortiq_conformance.faults.tails import WRONG_ANSWERS, WRONG_STATES

DECLINES = "declines everything"
DELEGATES = "delegates behind the back"
SEQUENCES, ROBUSTNESS = 2, 3
"""Stages of level 0, after the foundations (0) and the primitives (1)."""
WRONG: Mapping[str, Wrong] = {
    **WRONG_KERNELS, **WRONG_ROUNDINGS, **WRONG_RECURRENCES, **WRONG_SUMS, **WRONG_PRODUCTS,
    **WRONG_ORDERS, **WRONG_CHOICES, **WRONG_COMPRESSION, **WRONG_OVERLAYS,
}  # fmt: skip
"""Wrong kernels by fault."""
ANSWERS: Mapping[str, dict[type, Callable[[Any, Any, int], Any]]] = {
    **WRONG_ANSWERS, **ANSWERS_IN_WRONG_ORDER,
}  # fmt: skip
"""Wrong answers by fault."""
STATES: Mapping[str, type[StoredState]] = {**WRONG_STATES, **WRONG_RECURRENT_STATES}
"""Wrong sequences by fault."""

WITH_MINIMA = ("Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K", "i4b32m", "i8b32m")
"""Layouts whose blocks have a minimum, or an offset, beside the scale."""
FAULTS: Mapping[str, Fault] = {
    "fused multiply-add in RMSNorm": Fault(("RMSNorm",), "RMSNorm"),
    "reordered canonical_sum": Fault(("canonical_sum",), "RMSNorm", FOUNDATION),
    "half-away rounding in the quantiser": Fault(("Quantise",), "Quantise", FOUNDATION),
    "planes swapped": Fault(("MatMul[w16]",), "MatMul"),
    "float matmul in the f32 format": Fault(("MatMul[f32]",), "MatMul"),
    "tie to the highest index": Fault(("Argmax",), "Argmax"),
    "wrong tie-break in top-k": Fault(("Top ties",), "Top"),
    "wrong tie-break in routing": Fault(("Route ties",), "Route"),
    "window off by one": Fault(("Attend window", "Attend keys", "Attend span"), "Attend"),
    "a window counted from the last key": Fault(("Attend span",), "Attend"),
    "rows that see nothing after themselves": Fault(
        ("Attend block", "Attend span", "Attend listed"), "Attend"
    ),
    "an image that sees the one after it": Fault(("Attend block", "Attend span"), "Attend"),
    "an encoder's rows up to a row's own number": Fault(("Attend crossed",), "Attend", SEQUENCES),
    "a batch that hears its first sound": Fault(("Attend crossed",), "Attend", SEQUENCES),
    "rows that see more than the blocks that they list": Fault(("Attend listed",), "Attend"),
    "sink dropped": Fault(("Attend sinks",), "Attend"),
    "scores that do not fall with distance": Fault(("Attend slopes",), "Attend"),
    "slopes of heads by their place in a group": Fault(("Attend slopes",), "Attend"),
    "a stale row after rewind": Fault(("rewind",), "Attend", SEQUENCES),
    "a fork that shares its parent's tail": Fault(("fork",), "Attend", SEQUENCES),
    "a tile counted from the chunk's start": Fault(ATTEND[:-2], "Attend"),
    "tiles added without runs": Fault(ATTEND, "Attend").in_order("runs of tiles", 2),
    "a sink before the keys": Fault(("Attend sinks",), "Attend").in_order(
        "runs of tiles and the sink", 3
    ),
    "blocks added without runs": Fault(PRODUCTS, "MatMul").in_order("runs of blocks", 2),
    "minima added behind all blocks": Fault(
        tuple(f"MatMul[{name}]" for name in WITH_MINIMA), "MatMul"
    ).in_order("blocks of a run", 2),
    "lanes added neighbour by neighbour": Fault(("canonical_sum",), "RMSNorm", FOUNDATION),
    "powers added one by one": Fault(("Activation",), "Activation", FOUNDATION),
    "powers added in pairs": Fault(("Activation",), "Activation", FOUNDATION),
    "a softmax of the chosen by their scores": Fault(("Route",), "Route"),
    "weight times root first": Fault(("RMSNorm",), "RMSNorm"),
    "penalties before the bias": Fault(("Draw",), "Draw"),
    "top-p before top-k": Fault(("Draw",), "Draw"),
    "a rotary table of 4096 positions": Fault(("Rope",), "Rope"),
    "the last of equal blocks": Fault(("ChooseBlocks",), "ChooseBlocks"),
    "the last of equal keys": Fault(
        ("ChooseKeys", "Attend keys", "Attend slopes"), "ChooseKeys", also=("Attend",)
    ),
    "heads added one after the other": Fault(("ChooseKeys",), "ChooseKeys"),
    "heads added in pairs": Fault(("ChooseKeys",), "ChooseKeys"),
    "negative scores of heads": Fault(
        ("ChooseKeys", "Attend keys", "Attend slopes"), "ChooseKeys", also=("Attend",)
    ),
    "a chunk that ends one key early": Fault(
        ("OwnBlock", "Attend blocks"), "OwnBlock", also=("Attend",)
    ),
    "a row that sees its batch neighbour": Fault(("batch", "Attend crossed"), "Attend", SEQUENCES),
    "a position-independent random key": Fault(("Draw",), "Draw"),
    "a mask that is a bias": Fault(("Draw",), "Draw"),
    "a draft drawn for the next position": Fault(("Draw",), "Draw"),
    "a tie at the cut to the highest id": Fault(("Draw",), "Draw"),
    "top-p without the id that crosses": Fault(("Draw",), "Draw"),
    "a penalty that counts the prompt twice": Fault(("Draw",), "Draw"),
    "a history that a rewind leaves": Fault(("rewind",), "Draw", SEQUENCES),
    "columns in the inverse order": Fault(("Permute",), "Permute"),
    "all NaN": Fault(("Multiply",), "Multiply"),
    "all zero": Fault(("Activation",), "Activation", FOUNDATION),
    "output never written": Fault(("Bias",), "Bias"),
    "sums that are not snapped": Fault(("Add",), "Add"),
    "an integer rounded twice": Fault(("MatMul[w16]",), "MatMul"),
    "wide codes without their lower bytes": Fault(
        ("MatMul[e4m3b32]", "MatMul[nf4b32]", "MatMul[fp4b32]"), "MatMul"
    ),
    "minima left out": Fault(("MatMul[Q4_K]",), "MatMul"),
    "every pair turned by the first axis": Fault(("Rope",), "Rope"),
    "the other rotary pairs": Fault(("Rope",), "Rope"),
    "a variance of moments": Fault(("LayerNorm",), "LayerNorm"),
    "a snapshot that goes on with its sequence": Fault(("snapshot",), "Attend", SEQUENCES),
    "an export without low planes": Fault(("export",), "Attend", SEQUENCES),
    "a tile given up too early": Fault(("windows",), "Attend", ROBUSTNESS),
    "a state rounded once more": Fault(("DeltaRule",), "DeltaRule"),
    "a key written before what is removed": Fault(("DiagonalDeltaRule",), "DiagonalDeltaRule"),
    "the decay of the first row": Fault(("StateSpace",), "StateSpace"),
    "a state summed row after row": Fault(("StateSpace",), "StateSpace"),
    "experts of every group": Fault(("Route",), "Route"),
    "a sparse mixer with the experts before": Fault(("Route",), "Route"),
    "an exponential of another library": Fault(("Gain",), "Gain"),
    "a square rounded up": Fault(("Gain",), "Gain"),
    "rows of a matrix before its columns": Fault(("Sinkhorn",), "Sinkhorn"),
    "an entry without the bias of its rows": Fault(("Compress",), "Compress"),
    "the first keys of a list": Fault(("ListKeys", "Attend mass"), "ListKeys", also=("Attend",)),
    "a list without its last expert": Fault(("KeepListed",), "KeepListed"),
    "a batch with the overlay of its first row": Fault(("overlay",), "ExpertMatMul", SEQUENCES),
    "places in stacks of one matrix fewer": Fault(("StackIndex",), "StackIndex"),
    "indices from the end of a row": Fault(("IndexSelect",), "IndexSelect"),
    "n-grams across the end of a text": Fault(("HashNGrams",), "HashNGrams"),
    "windows of the position after a row": Fault(("WindowBlocks",), "WindowBlocks"),
    "a state that a rewind leaves as it is": Fault(("rewind",), "DeltaRule", SEQUENCES),
    DECLINES: Fault((), ""),
    DELEGATES: Fault(("placement",), "", ROBUSTNESS),
    **faults(),
}
"""Every fault; `declines everything` fails by computing nothing."""
