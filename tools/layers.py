"""The floors of the house: which package may import which.

A package of `cortiq` imports only packages of lower floors; backends, plugins and the conformance
kit stand outside and import what `OUTSIDE` lists. `tools/check_layers.py` checks the tree against
these lists and puts them into docs/architecture.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

FLOORS: tuple[tuple[str, Mapping[str, str]], ...] = (
    (
        "words",
        {
            "errors": "exceptions, each with a hint and an exit status",
            "atomic": "files renamed into place once they are complete",
            "command_names": "names of the commands, known without importing them",
            "option_names": "spellings of options",
        },
    ),
    (
        "checks",
        {
            "arguments": "types of arguments that callers pass",
            "domains": "which values a field may take",
            "option_values": "specification and checking of an option's value",
        },
    ),
    (
        "classes of options",
        {
            "option_sets": "their flags, variables of the environment, and checked values",
        },
    ),
    (
        "contract",
        {
            "numerics": "the contract, executable: every operation's bits in NumPy",
            "formats": "checkpoints and downloads, read as hostile",
        },
    ),
    (
        "data",
        {
            "ir": "typed graphs of operators, and their verifier",
            "tokenizer": "text to ids and back, chat templates",
            "dialects": "tool calls and thinking in a model's text",
        },
    ),
    (
        "seam",
        {
            "backend": "what a backend implements: protocol, batch, outcomes, `KernelBackend`",
        },
    ),
    ("options", {"options": "options of loading, generating, scoring, embedding"}),
    (
        "engine",
        {"engine": "scheduler, sequences, state manager, prefix cache, drafters and policies"},
    ),
    ("families", {"models": "families: a config and tensors become a graph"}),
    (
        "sound",
        {"hearing": "sound becomes a spectrogram, and that the rows of an encoder"},
    ),
    ("towers", {"vision": "towers: an image or a sound becomes rows of a text model"}),
    ("hooks", {"hookspecs": "the plugin contract"}),
    ("plugins", {"plugins": "finding, checking and calling packages"}),
    ("placement", {"placement": "which backend computes which node; chains of executables"}),
    ("ranks", {"ranks": "one program on several devices: shares, exchanges, commands"}),
    (
        "model",
        {
            "model": "what a user holds: load, generate, stream, chat, score, embed",
            "receipts": "record, sign, replay, verify",
        },
    ),
    ("api", {"cortiq": "the public names"}),
    (
        "programs",
        {
            "bench": "speed of a model and of drafting, beside llama.cpp",
            "convert": "a model's matrices to other formats, and the files that hold them",
            "explain": "what a model computes inside, two runs compared, calibration",
            "serve": "HTTP APIs over one worker thread",
            "lm_eval": "EleutherAI's evaluation harness",
        },
    ),
    ("shell", {"cli": "a file for each command"}),
    ("entry", {"__main__": "`python -m cortiq`"}),
)
"""Floors from the ground up: a name, and the packages on it with a sentence each."""

_BACKEND = frozenset({"backend", "errors", "hookspecs", "ir", "numerics"})
OUTSIDE: Mapping[str, frozenset[str]] = {
    "cortiq_reference": _BACKEND,
    "cortiq_cpu": _BACKEND,
    "cortiq_triton": _BACKEND,
    "cortiq_wgpu": _BACKEND,
    "cortiq_mlx": _BACKEND,
    "cortiq_torch": _BACKEND,
    "cortiq_null": _BACKEND | {"cortiq_reference"},
    "cortiq_faulty": _BACKEND | {"cortiq_reference", "cortiq_conformance"},
    "cortiq_producers": frozenset({"backend", "engine", "errors", "ir", "numerics"}),
    "cortiq_bounded": _BACKEND
    | {"domains", "formats", "model", "models", "options", "cortiq_reference"}
    | {"cortiq_cpu", "cortiq_triton"},
    "cortiq_masks": _BACKEND
    | {"atomic", "cli", "convert", "domains", "engine", "explain", "formats", "model", "models"}
    | {"options", "placement", "plugins", "cortiq_cpu"},
    "cortiq_skills": _BACKEND
    | {"cli", "convert", "cortiq", "domains", "engine", "formats", "model", "models", "options"}
    | {"plugins", "cortiq_cpu"},
    "cortiq_conformance": _BACKEND
    | {"cortiq", "engine", "formats", "model", "models", "options", "plugins", "ranks"}
    | {"tokenizer", "cortiq_reference", "vision"},
}
"""Packages outside `cortiq`, and all that each of them may import."""


class Exemption(NamedTuple):
    """An import that goes up or sideways, and why it may."""

    importer: str
    imported: str
    reason: str


EXEMPTIONS = (
    Exemption(
        "model",
        "receipts",
        "`Generation.receipt` and `Model.verify` are methods for the user's sake; nothing else of "
        "`model` knows receipts",
    ),
    Exemption(
        "receipts",
        "model",
        "a receipt is replayed on a loaded model: the other half of the same pair",
    ),
    Exemption(
        "cli",
        "cortiq_conformance",
        "`cortiq conform` is the kit's own command; without the kit it says how to install it",
    ),
)
"""Imports that the floors do not allow."""


class Cycle(NamedTuple):
    """Modules of one package that import one another, as patterns, and why they may."""

    modules: tuple[str, ...]
    reason: str


CYCLES = (
    Cycle(
        ("cortiq.model.*", "cortiq.receipts.*"),
        "`Model`'s methods lie in several files, its drafters load models again, and its receipts "
        "replay on it",
    ),
    Cycle(("cortiq.ir.graph", "cortiq.ir.op"), "a node holds an operator, which checks its node"),
    Cycle(
        ("cortiq.dialects.dialect", "cortiq.dialects.json_text"),
        "calls in JSON are what most dialects parse",
    ),
    Cycle(("cortiq.cli.chat*",), "commands of a chat act on the chat that runs them"),
    Cycle(
        ("cortiq_conformance*",),
        "the package exports what its modules import; the cases explain themselves",
    ),
    Cycle(
        ("cortiq.backend.float64", "cortiq.backend.matrices"),
        "matrices compute with a library's arrays, and the arrays' kernels stack matrices",
    ),
    Cycle(("cortiq_mlx.*",), "executable, run and state refer to their owner by type"),
)
"""Modules that may import one another; in a new package, or between two, none may."""
