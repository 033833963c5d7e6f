"""Mutants of GGUF files and of folders: opened, built, tokenised and computed, or refused by name.

`python -m tests.fuzz.files --seconds 60`. Only errors of ours may come of a file, in little memory.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import gguf
import numpy as np
from fuzzing import memory_limit, mutate
from safetensors.numpy import save

import cortiq
from cortiq.convert.run import convert_model
from cortiq.errors import CortiqError

from .mutants import main, mutated_text, rounds
from .packed_folders import (
    expert_files,
    late_files,
    mixed_files,
    other_files,
    quantised_files,
    quark_files,
)
from .small_folder import VOCABULARY, WIDTH, folder_files, weights

MEBIBYTES = 1024
"""Address space that loading a mutant may take: the model has a few hundred KiB."""
ADAPTER = "lora.gguf"
PIECES = [b"GGUF", b"\x00" * 8, b"\xff" * 8, b"llama.", b"general.alignment", b"\x08\x00\x00\x00"]


def gguf_files() -> dict[str, bytes]:
    """A GGUF model with a tokenizer."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.gguf"
        writer = gguf.GGUFWriter(str(path), "llama")
        for key, value in {
            "context_length": 64, "embedding_length": WIDTH, "block_count": 1,
            "attention.head_count": 4, "attention.head_count_kv": 2, "feed_forward_length": 48,
            "rope.dimension_count": 8,
        }.items():  # fmt: skip
            writer.add_uint32(f"llama.{key}", value)
        writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
        writer.add_float32("llama.rope.scaling.factor", 2.0)
        writer.add_string("tokenizer.ggml.model", "llama")
        pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
        pieces += [f"▁{n}" for n in range(VOCABULARY - len(pieces))]
        writer.add_token_list(pieces)
        writer.add_token_scores([-float(n) for n in range(VOCABULARY)])
        writer.add_token_types([2, 3, 3, *[6] * 256, *[1] * (VOCABULARY - 259)])
        writer.add_uint32("tokenizer.ggml.eos_token_id", 2)
        writer.add_string("tokenizer.chat_template", "{% for m in messages %}{{ m }}{% endfor %}")
        for name, values in weights().items():
            outside = name == "token_embd"
            writer.add_tensor(f"{'' if outside else 'blk.0.'}{name}.weight", values)
        writer.add_tensor("output_norm.weight", np.ones(WIDTH, "f4"))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return {"m.gguf": path.read_bytes()}


def _converted(files: Mapping[str, bytes], recipe: str) -> dict[str, bytes]:
    """Return the folder of our own that a model is converted to."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "model"
        source.mkdir()
        for name, data in files.items():
            (source / name).write_bytes(data)
        made = convert_model(str(source), Path(folder) / "out", recipe).path
        return {path.name: path.read_bytes() for path in made.iterdir()}


def own_files() -> dict[str, bytes]:
    """A folder of our own, from the folder: blocks and floats."""
    return _converted(folder_files(), "w4")


def own_gguf_files() -> dict[str, bytes]:
    """A folder of our own, from the GGUF model: codes and scales apart."""
    return _converted(gguf_files(), "w16")


def adapter_files() -> dict[str, bytes]:
    """The folder with an adapter in it: a matrix, the table, and a norm held whole."""
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "use_dora": False,
              "use_rslora": True, "alpha_pattern": {"q_proj": 3}}  # fmt: skip
    ones, start = partial(np.ones, dtype="f4"), "base_model.model.model"
    query = f"{start}.layers.0.self_attn.q_proj"
    tensors = {
        f"{query}.lora_A.weight": ones((2, WIDTH)), f"{query}.lora_B.weight": ones((32, 2)),
        f"{start}.embed_tokens.lora_embedding_A": ones((2, VOCABULARY)),
        f"{start}.embed_tokens.lora_embedding_B": ones((WIDTH, 2)),
        f"{start}.norm.weight": ones(WIDTH),
    }  # fmt: skip
    made = {"adapter_config.json": json.dumps(config).encode()}
    return {**folder_files(), **made, "adapter_model.safetensors": save(tensors)}


def gguf_adapter_files() -> dict[str, bytes]:
    """A GGUF model and an adapter of one matrix."""
    with tempfile.TemporaryDirectory() as folder:
        writer = gguf.GGUFWriter(path := f"{folder}/{ADAPTER}", "llama")
        writer.add_type("adapter")
        writer.add_string("adapter.type", "lora")
        writer.add_float32("adapter.lora.alpha", 4.0)
        writer.add_tensor("blk.0.attn_q.weight.lora_a", np.ones((2, WIDTH), "f4"))
        writer.add_tensor("blk.0.attn_q.weight.lora_b", np.ones((32, 2), "f4"))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return {**gguf_files(), ADAPTER: Path(path).read_bytes()}


SEEDS = (
    gguf_files, folder_files, quantised_files, other_files, adapter_files, gguf_adapter_files,
    own_files, own_gguf_files, mixed_files, quark_files, late_files, expert_files,
)  # fmt: skip


def mutant(files: Mapping[str, bytes], rng: random.Random) -> dict[str, bytes]:
    """The files with one of them changed; metadata and headers more often than weights."""
    name = rng.choice(sorted(files))
    data = files[name]
    if name.endswith(".json"):
        return {**files, name: mutated_text(data, rng)}
    if name.endswith(".safetensors") and rng.random() < 0.5:
        length = int.from_bytes(data[:8], "little")
        header = mutated_text(data[8 : 8 + length], rng)
        return {**files, name: len(header).to_bytes(8, "little") + header + data[8 + length :]}
    head = min(len(data), 12_000)  # where the numbers are
    if rng.random() < 0.8:
        return {**files, name: mutate(data[:head], rng, PIECES) + data[head:]}
    return {**files, name: mutate(data, rng, PIECES)}


def tried(files: Mapping[str, bytes]) -> str:
    """Return a model's outcome: "read", or the name of our error."""
    with tempfile.TemporaryDirectory() as folder, memory_limit(MEBIBYTES):
        for name, data in files.items():
            (Path(folder) / name).write_bytes(data)
        model, lora = folder, [folder] if "adapter_config.json" in files else []
        if ADAPTER in files:
            model, lora = f"{folder}/m.gguf", [f"{folder}/{ADAPTER}"]
        try:
            with cortiq.load(model, backend="reference", threads=1, lora=lora) as model:
                ids = model.ids("a b 1") if not model.tokenizer.absent else [1, 2]
                model.logits(ids[:4])
                if not model.tokenizer.absent:
                    model.tokenizer.decode(ids)
        except CortiqError as error:
            return type(error).__name__
        return "read"


def try_one(seeds: list[dict[str, bytes]], rng: random.Random) -> str:
    """Draw a mutant of one of the models, and try it."""
    return tried(mutant(rng.choice(seeds), rng))


def run(seed: int, count: int | None = None, seconds: float | None = None, first: int = 0) -> (
    Counter[str]
):  # fmt: skip
    """Mutants of every kind of model; how often each outcome came."""
    seeds = [make() for make in SEEDS]
    assert [tried(files) for files in seeds] == ["read"] * len(seeds)
    return rounds(partial(try_one, seeds), seed, count=count, seconds=seconds, first=first)


if __name__ == "__main__":
    main(__doc__, lambda o: run(o.seed, seconds=o.seconds, first=o.first))
