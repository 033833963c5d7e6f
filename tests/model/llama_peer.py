"""llama.cpp beside cortiq: logits of tiny GGUF files of every architecture, from both.

`python tests/model/llama_peer.py` prints the table of docs/models.md.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gguf_files
import numpy as np
from checkpoints import write
from family_harness import Family, declared, logits_of
from gguf_files import GGUF

from cortiq.formats.checkpoint import open_checkpoint

PYTHON = os.environ.get("CORTIQ_LLAMA_PYTHON") or sys.executable
"""The interpreter that has llama-cpp-python."""
SCRIPT = Path(__file__).with_name("llama_logits.py")


BOUND = 1e-5
"""Of the difference of two logits, in standard deviations of all logits."""


@dataclass(frozen=True)
class Peer:
    """What a tiny file needs for llama.cpp to read it as a real one.

    Attributes
    ----------
    options : of the checkpoint, over those of the geometry.
    values : metadata that real files have, or that llama.cpp takes otherwise.
    geometry : of the harness.
    without : regular expression of tensors that are left out.
    what : `logits`, or `flash`, logits with flash attention.
    bound : of the difference. why : why it is larger than `BOUND`, or what is left out.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    geometry: str = "odd"
    without: str = "-"
    what: str = "logits"
    bound: float = BOUND
    why: str = ""


ROPE = "rope_parameters"
TABLE = "GELU is looked up in a table of half floats"
TANH = f"{TABLE}, of the form with tanh"
GELU = Peer(bound=2e-3, why=TABLE)
SQUARE = {"hidden_size": 48, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 12}
LATENT = Peer({"rms_norm_eps": 1e-6}, why="norms of latents take the eps of the others")
UNIT = Peer({"rms_norm_eps": 1e-6, "linear_value_head_dim": 10}, geometry="wide",
            why="rows of length 1 take the eps of norms")  # fmt: skip
MTP = {"attention.layer_norm_epsilon": 1e-5}
LLLG = ["sliding_attention"] * 3 + ["full_attention"]
PEERS: Mapping[str, Peer] = {
    "bloom": GELU,
    "gemma": GELU,
    "gemma2": GELU,
    "gemma3": GELU,
    "gpt2": GELU,
    "phi2": GELU,
    "starcoder": GELU,
    "starcoder2": GELU,
    **dict.fromkeys(("falcon", "gptneox", "mpt"), Peer(bound=5e-3, why=TANH)),
    "gemma4": Peer(bound=5e-3, why=TABLE),
    "gemma4-experts": Peer(geometry="wide", bound=5e-3, why=TABLE),
    "gemma3n": Peer(
        {
            "hidden_size_per_layer_input": 256,
            "intermediate_size": [72, 72, 72],
            "activation_sparsity_pattern": [0.95, 0.95, 0.95],
        },
        bound=0.1,
        why="deviations are divided by n − 1; only layers 0 to 9 are sparse, by 0.95",
    ),
    "mistral": Peer({"sliding_window": None}, why="files of `llama` have no windows"),
    "phi3": Peer({"sliding_window": None}, why="windows are not used"),
    "exaone4": Peer(
        {"num_hidden_layers": 64, "layer_types": LLLG * 16},
        why="only files of 64 layers have windows",
    ),
    "gpt-oss": Peer(
        {ROPE: {"rope_type": "default", "rope_theta": 1e4}},
        why="bounds of YaRN's ramp are rounded to whole pairs; its betas are always 32 and 1",
    ),
    "nemotron": Peer(SQUARE),
    "olmoe": Peer(SQUARE),
    "dots1": Peer(SQUARE),
    "glm4moe": Peer(values={"nextn_predict_layers": None, "block_count": 3}, without=r"blk\.3\..*"),
    "deepseek2": replace(LATENT, options={"q_lora_rank": 20, "rms_norm_eps": 1e-6}),
    "minicpm3": LATENT,
    "youtu": LATENT,
    "mistral4": LATENT,
    "deepseek32": replace(LATENT, options={"rms_norm_eps": 1e-6, "index_head_dim": 64}),
    "glm-dsa": replace(LATENT, options={"rms_norm_eps": 1e-6, "index_head_dim": 64}),
    "jamba": Peer(geometry="wide"),
    "minimax-m3": Peer(
        {"num_key_value_heads": 2},
        geometry="wide",
        what="flash",
        bound=5e-3,
        why="blocks of keys are chosen with flash attention only, which rounds to half floats",
    ),
    "qwen3next": UNIT,
    "qwen35": UNIT,
    "qwen35moe": UNIT,
    "nemotron_h": Peer(values=MTP),
    "nemotron_h_moe": Peer(values=MTP),
    "minimax-01": Peer(
        {"rms_norm_eps": 1e-6},
        bound=2e-5,
        why="norms of linear attention take the eps of the others; the last layer's rate is "
        "1e-5 of the first's, transformers' a little more",
    ),
    "deepseek4": Peer({"index_head_dim": 64}),
    "bailingmoe3": replace(LATENT, values={"context_length": 256}),
    "kimi-linear": replace(LATENT, values={"context_length": 256}),
}
"""By architecture, or by family where an architecture has several."""


@dataclass(frozen=True)
class Sample:
    """A tiny file of an architecture: how it is made, and what llama.cpp makes of it."""

    family: Family
    how: GGUF
    peer: Peer

    def __str__(self) -> str:
        return f"{self.how}-{self.family}"


def samples() -> list[Sample]:
    """Return a sample of every declared family and architecture."""
    return [
        Sample(family, how, PEERS.get(str(family)) or PEERS.get(how.architecture) or Peer())
        for family in declared()
        for how in family.gguf
    ]


def why_not() -> str:
    """Return why there is no llama.cpp to compare with; nothing if there is."""
    command = [PYTHON, "-c", "from llama_cpp import llama_cpp"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = (done.stderr.strip().splitlines() or [""])[-1]
    where = "CORTIQ_LLAMA_PYTHON names an interpreter that has it"
    return f"{PYTHON} has no llama-cpp-python ({said}); {where}" if done.returncode else ""


def llama_rows(
    path: Path, ids: Sequence[int | str], what: str = "logits"
) -> tuple[np.ndarray | None, str]:
    """Return llama.cpp's rows of a text; None, and what it says, where it has none."""
    out = path.with_suffix(".npy")
    command = [PYTHON, str(SCRIPT), str(path), str(out), what, *(str(one) for one in ids)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return np.load(out), ""
    lines = done.stderr.splitlines()
    said = [line for line in lines if re.search("error|ASSERT|required|not decoded", line)]
    return None, "; ".join(said[:2])


def write_sample(sample: Sample, folder: Path) -> tuple[Path, np.ndarray]:
    """Write the GGUF file; return it, and the ids to compare."""
    peer, known = sample.peer, sample.how.geometries
    case = sample.family.case(peer.geometry if peer.geometry in known else known[0])
    case = replace(case, options={**case.options, **peer.options})
    model = write(case, folder / case.name)
    path = folder / f"{sample}.gguf"

    def change(values: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
        values.update(peer.values)
        values.setdefault("vocab_size", case.options["vocab_size"])
        for name in [n for n in tensors if re.fullmatch(peer.without, n)]:
            del tensors[name]

    gguf_files.write_gguf(path, model.folder, sample.how, change)
    return path, model.tokens


def difference(sample: Sample, path: Path, ids: np.ndarray) -> float:
    """Return the greatest difference of llama.cpp's logits and ours, in standard deviations."""
    logits = logits_of(open_checkpoint(path), ids, sample.family.context)
    found, said = llama_rows(path, ids, sample.peer.what)
    assert found is not None, said
    return float(np.abs(found - logits).max() / logits.std())


def main() -> None:
    """Print a row of the table for every sample."""
    if reason := why_not():
        sys.exit(reason)
    with TemporaryDirectory() as folder:
        for sample in samples():
            path, ids = write_sample(sample, Path(folder))
            found = difference(sample, path, ids)
            print(f"| `{sample.how}` | `{sample.family}` | {found:.0e} | {sample.peer.why} |")


if __name__ == "__main__":
    main()
