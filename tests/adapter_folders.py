"""PEFT folders of adapters for synthetic models, with random numbers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import safetensors.numpy

TARGETS = ("q_proj", "v_proj", "up_proj", "down_proj")


def write_lora(
    folder: Path,
    model,
    seed: int,
    rank: int = 3,
    targets=TARGETS,
    *,
    dora: bool = False,
    size: float = 0.3,
) -> Path:
    """Write a LoRA of some matrices of a model; return its folder. B has a deviation of `size`."""
    random, tensors = np.random.default_rng(seed), {}
    for name, spec in model.program.weights.items():
        module = name.removesuffix(".weight")
        if module.rpartition(".")[2] not in targets or len(spec.shape) != 2:
            continue
        rows, columns = spec.shape
        table = "embed" in module
        a, b = ("lora_embedding_A", "lora_embedding_B") if table else ("lora_A", "lora_B")
        shapes = (rank, rows if table else columns), (columns if table else rows, rank)
        for part, shape in zip((a, b), shapes, strict=True):
            end = "" if table else ".weight"
            value = random.normal(size=shape) * (1 if part == a else size)
            tensors[f"base_model.model.{module}.{part}{end}"] = value.astype(np.float32)
        if dora:
            values = random.uniform(0.5, 2, rows).astype(np.float32)
            tensors[f"base_model.model.{module}.lora_magnitude_vector"] = values
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "use_dora": dora}
    return _write(folder, config, tensors)


def write_ia3(folder: Path, model, seed: int, outputs=("k_proj", "v_proj")) -> Path:
    """Write vectors of outputs, and of the inputs of `down_proj`; return the folder."""
    random, tensors = np.random.default_rng(seed), {}
    for name, spec in model.program.weights.items():
        module = name.removesuffix(".weight")
        end = module.rpartition(".")[2]
        if end not in (*outputs, "down_proj"):
            continue
        shape = (1, spec.shape[1]) if end == "down_proj" else (spec.shape[0], 1)
        values = random.uniform(0.5, 1.5, shape).astype(np.float32)
        tensors[f"base_model.model.{module}.ia3_l"] = values
    return _write(folder, {"peft_type": "IA3"}, tensors)


def _write(folder: Path, config: dict, tensors: dict[str, np.ndarray]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    safetensors.numpy.save_file(tensors, folder / "adapter_model.safetensors")
    return folder
