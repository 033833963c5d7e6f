"""Anonymous memory of loading and converting a large checkpoint, made up for the purpose.

    python benchmarks/load_memory.py FOLDER --gigabytes 2 [--backends reference cpu]

A Llama of random weights is written to FOLDER as bf16 safetensors and as a GGUF file in Q4_K, and
converted from the first to w4. Every load and conversion is a process of its own; what it says is
the largest `Anonymous` of /proc/self/smaps_rollup, read fifty times a second, over what a process
that has imported everything and loaded a tiny model has.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from math import prod
from pathlib import Path

import gguf
import numpy as np

WIDTH, INNER, HEADS, KV_HEADS, VOCABULARY = 2048, 8192, 16, 4, 32000
SHAPES = {
    "self_attn.q_proj": (WIDTH, WIDTH), "self_attn.k_proj": (WIDTH // 4, WIDTH),
    "self_attn.v_proj": (WIDTH // 4, WIDTH), "self_attn.o_proj": (WIDTH, WIDTH),
    "mlp.gate_proj": (INNER, WIDTH), "mlp.up_proj": (INNER, WIDTH), "mlp.down_proj": (WIDTH, INNER),
    "input_layernorm": (WIDTH,), "post_attention_layernorm": (WIDTH,),
}  # fmt: skip
IN_GGUF = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
LAYER = sum(prod(shape) for shape in SHAPES.values())
TABLE = VOCABULARY * WIDTH
CHUNK = 1 << 22


def tensors(layers: int) -> dict[str, tuple[int, ...]]:
    """Return shapes by name, as a folder has them."""
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens": (VOCABULARY, WIDTH)}
    for layer in range(layers):
        found |= {f"model.layers.{layer}.{name}": shape for name, shape in SHAPES.items()}
    return found | {"model.norm": (WIDTH,)}


def write_bf16(folder: Path, gigabytes: float) -> Path:
    """Write a folder of so many bytes in bf16."""
    layers = max(1, round((gigabytes * 1e9 - 2 * TABLE) / (2 * LAYER)))
    folder.mkdir(parents=True)
    config = {
        "model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": WIDTH,
        "intermediate_size": INNER, "num_hidden_layers": layers, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "rms_norm_eps": 1e-5, "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    header, end = {}, 0
    for name, shape in tensors(layers).items():
        start, end = end, end + 2 * prod(shape)
        entry = {"dtype": "BF16", "shape": list(shape), "data_offsets": [start, end]}
        header[f"{name}.weight"] = entry
    text = json.dumps(header).encode()
    pattern = np.random.default_rng(0).standard_normal(CHUNK).astype("<f4") * 0.02
    body = (pattern.view("<u4") >> 16).astype("<u2").tobytes()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for start in range(0, end, len(body)):
            file.write(body[: end - start])
    return folder


def write_q4_k(path: Path, gigabytes: float) -> Path:
    """Write a GGUF file of so many bytes, matrices in Q4_K."""
    rate = 144 / 256
    layers = max(1, round((gigabytes * 1e9 - rate * TABLE) / (rate * LAYER)))
    path.parent.mkdir(parents=True)
    writer = gguf.GGUFWriter(str(path), "llama")
    for key, value in {
        "context_length": 2048, "embedding_length": WIDTH, "block_count": layers,
        "attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS,
        "feed_forward_length": INNER, "rope.dimension_count": WIDTH // HEADS,
    }.items():  # fmt: skip
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    kind, block = gguf.GGMLQuantizationType.Q4_K, np.full(144, 0x35, np.uint8)
    block[:4] = np.array([1e-4, 1e-4], "<f2").view(np.uint8)
    names = {}
    for name, shape in tensors(layers).items():
        *_, layer = name.removeprefix("model.").split(".")[:2]
        stem = name.split(".", 3)[-1]
        own = {"model.embed_tokens": "token_embd", "model.norm": "output_norm"}.get(name)
        names[f"{own or f'blk.{layer}.{IN_GGUF[stem]}'}.weight"] = shape
    for name, shape in names.items():
        if len(shape) == 1:
            writer.add_tensor_info(name, shape, np.dtype("f4"), 4 * shape[0])
        else:
            size = prod(shape) // 256 * 144
            raw = (*shape[:-1], shape[-1] // 256 * 144)
            writer.add_tensor_info(name, raw, np.dtype("u1"), size, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for shape in names.values():
        flat = np.ones(shape, "f4") if len(shape) == 1 else np.tile(block, prod(shape) // 256)
        writer.write_tensor_data(flat)
    writer.close()
    return path


def anonymous() -> int:
    """Return the anonymous memory of this process, in bytes."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return 1024 * int(line.split()[1])
    raise AssertionError("the kernel says nothing of anonymous memory")


def most_anonymous(work: Callable[[], object]) -> int:
    """Return the largest anonymous memory while something is done."""
    most, stop = [anonymous()], threading.Event()

    def watch() -> None:
        while not stop.wait(0.02):
            most.append(max(most[-1], anonymous()))

    thread = threading.Thread(target=watch)
    thread.start()
    result = work()
    stop.set()
    thread.join()
    del result
    return max(most[-1], anonymous())


def child(what: str, source: str, to: str) -> None:
    """Do one thing; print what it takes over a process that has everything imported."""
    import cortiq
    from cortiq.convert.run import convert_model

    if what == "convert":
        before, started = anonymous(), time.process_time()
        most = most_anonymous(lambda: convert_model(source, to, "w4"))
    else:
        cortiq.load("synthetic:tiny-llama", backend=what).close()
        before, started = anonymous(), time.process_time()
        most = most_anonymous(lambda: cortiq.load(source, backend=what))
    print(json.dumps([most - before, time.process_time() - started]))


def measured(what: str, source: Path, to: str = "") -> None:
    """Measure in a process of its own, and print a line."""
    command = [sys.executable, __file__, "--child", what, str(source), to]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        print(f"{what:10} {source.name:16} failed: {done.stderr.strip().splitlines()[-1]}")
        return
    taken, seconds = json.loads(done.stdout)
    files = [source] if source.is_file() else list(source.iterdir())
    size = sum(file.stat().st_size for file in files)
    print(f"{what:10} {source.name:16} {size / 1e9:.2f} GB: {taken / 1e9:.3f} GB anonymous,"
          f" {taken / size:.3f} of it, {seconds:.0f} s of processor time", flush=True)  # fmt: skip


def main() -> None:
    """Print one line a load and conversion."""
    if sys.argv[1:2] == ["--child"]:
        return child(*sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--backends", nargs="*", default=["reference", "cpu"])
    chosen = parser.parse_args()
    places = [
        write_bf16(chosen.folder / "bf16", chosen.gigabytes),
        write_q4_k(chosen.folder / "q4_k" / "q4_k.gguf", chosen.gigabytes),
    ]
    measured("convert", places[0], str(chosen.folder / "w4"))
    for source in (*places, chosen.folder / "w4"):
        for backend in chosen.backends:
            measured(backend, source)
    shutil.rmtree(chosen.folder)
    return None


if __name__ == "__main__":
    main()
