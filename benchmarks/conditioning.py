"""Measure how far w16 moves the logits of recurrent models, and how far any error of its size does.

    python benchmarks/conditioning.py [--seeds N]

Tiny models of random weights, with the recurrent layers of their family and with attention in
their place. Printed for each: the logits' largest error in w16 and in f32 of the contract, in
float32 of PyTorch, and the amplification: the graph in float64 with its embeddings moved by 10⁻⁹ of
their size, over 10⁻⁹. All errors are shares of the largest logit. Needs transformers.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from cortiq.backend import Batch, CompileOptions, Named, Row
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.models import load_program
from cortiq_reference.backend import ReferenceBackend
from cortiq_reference.ideal import evaluate

MOVED, POSITIONS = 1e-9, 64
SIZES = {
    "vocab_size": 256, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
    "num_experts_per_tok": 2,
}  # fmt: skip
NEXT = {
    "head_dim": 16, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "num_experts": 8,
    "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
}  # fmt: skip
GRANITE = {
    "mamba_n_heads": 8, "mamba_d_state": 16, "mamba_d_head": 16, "num_local_experts": 4,
    "shared_intermediate_size": 64, "attention_multiplier": 0.25,
}  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any], float]] = {
    "qwen3_next": ("Qwen3NextConfig", NEXT, 0.1),
    "qwen3_next, attention only": (
        "Qwen3NextConfig", NEXT | {"layer_types": ["full_attention"] * 4}, 0.1
    ),
    "granitemoehybrid": (
        "GraniteMoeHybridConfig", GRANITE | {"layer_types": ["mamba"] * 2 + ["attention", "mamba"]},
        0.3,
    ),
    "granitemoehybrid, attention only": (
        "GraniteMoeHybridConfig", GRANITE | {"layer_types": ["attention"] * 4}, 0.3
    ),
}  # fmt: skip
"""Configuration class, options over `SIZES`, and the standard deviation of all matrices."""


def made(name: str, seed: int) -> Any:
    """Return a model of random weights."""
    config, options, deviation = MODELS[name]
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(
        getattr(transformers, config)(**SIZES | options),
        attn_implementation="eager", experts_implementation="eager",
    ).eval()  # fmt: skip
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.copy_(torch.randn(parameter.shape) * deviation)
    return model


def contract_logits(loaded: Any, tokens: Sequence[int]) -> np.ndarray:
    """Return the contract's logits at every position."""
    backend, logits = ReferenceBackend(), Named("logits")
    executable = backend.compile(loaded.program, loaded.weights, CompileOptions(threads=1))
    state = executable.open(len(tokens))
    rows = [Row(state, i, token, (logits,)) for i, token in enumerate(tokens)]
    return np.stack([row[logits] for row in executable.forward(Batch(rows)).result().rows])


def measured(name: str, seed: int) -> dict[str, float]:
    """Return the errors of one model and its amplification."""
    model = made(name, seed)
    tokens = np.random.default_rng(seed).integers(0, SIZES["vocab_size"], POSITIONS).tolist()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        model.save_pretrained(folder)
        checkpoint = open_checkpoint(Path(folder))
        exact, w16 = (load_program(checkpoint, weight_format=f) for f in ("f32", "w16"))
        values = evaluate(exact.program, exact.weights, tokens, ["logits", "embed"])
        embed, logits = values["embed"], values["logits"]
        noise = np.random.default_rng(9).standard_normal(embed.shape)
        moved = embed + MOVED * np.sqrt((embed**2).mean(axis=-1, keepdims=True)) * noise
        inputs = {"embed": moved}
        others = {
            "w16": contract_logits(w16, tokens),
            "f32": contract_logits(exact, tokens),
            "PyTorch": model(torch.tensor([tokens]), use_cache=False).logits[0].double().numpy(),
            "moved": evaluate(exact.program, exact.weights, tokens, ["logits"], inputs=inputs)[
                "logits"
            ],
        }
        errors = {
            k: float(np.abs(v - logits).max() / np.abs(logits).max()) for k, v in others.items()
        }
    amplification = errors.pop("moved") / MOVED
    return {**errors, "amplification": amplification}


def main() -> None:
    """Print one line a model: the median over the seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=8)
    seeds = parser.parse_args().seeds
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    for name in MODELS:
        found = [measured(name, seed) for seed in range(seeds)]
        middle = {key: float(np.median([errors[key] for errors in found])) for key in found[0]}
        print(name, " ".join(f"{key} {value:.2g}" for key, value in middle.items()), flush=True)


if __name__ == "__main__":
    main()
