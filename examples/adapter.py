"""LoRA adapters, chosen by each request of a batch. The adapters are random: nothing is trained."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

import cortiq

WIDTH, RANK = 576, 4  # of SmolLM2-135M


def write_lora(folder: Path, seed: int) -> Path:
    """Write an adapter of the attention's output matrices in PEFT's format."""
    draw, tensors = np.random.default_rng(seed), {}
    for layer in range(10, 20):
        name = f"base_model.model.model.layers.{layer}.self_attn.o_proj"
        for part, shape in (("lora_A", (RANK, WIDTH)), ("lora_B", (WIDTH, RANK))):
            tensors[f"{name}.{part}.weight"] = draw.normal(0, 0.15, shape).astype(np.float32)
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 8, "target_modules": ["o_proj"]}
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(config), "utf-8")
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


with cortiq.load(sys.argv[1] if len(sys.argv) > 1 else "smollm2") as model:
    for name, seed in (("one", 1), ("two", 2)):
        model.load_adapter(name, str(write_lora(Path(f"lora-{name}"), seed)))
    prompt, chosen = "The capital of France is", [None, "one", "two"]
    options = {"max_tokens": 12, "temperature": 0}
    together = model.generate_many([prompt] * 3, adapters=chosen, **options)
    for name, made in zip(chosen, together, strict=True):
        print(f"{name}: {made.text!r}")
    alone = model.generate(prompt, adapter="one", **options)
    print("the bits that it has alone:", alone.digest == together[1].digest)
    for name in chosen[1:]:
        model.unload_adapter(name)
