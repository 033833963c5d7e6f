"""Anonymous memory and time of loading and converting a large checkpoint, made up for the purpose.

    python benchmarks/load_memory.py FOLDER --gigabytes 8 [--formats q4_k fp8 nvfp4 bf16]
        [--backends reference cpu] [--convert w4 w8]

A Llama of random weights is written to FOLDER in each format: a GGUF file in Q4_K, or safetensors
in bf16, FP8 (scales of 128 by 128) or NVFP4 (modelopt's). Every load and conversion is a process of
its own; on the CPU backend the first one, which packs, the second, which finds packed weights, and
with --not-kept one that keeps none. It prints the largest `Anonymous` of /proc/self/smaps_rollup,
read fifty times a second, over what a process that has imported everything and loaded a tiny model
has, and the seconds beside those of reading the file. Kept weights go to FOLDER, too.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

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


class FileTensor(NamedTuple):
    """A tensor of a folder, and the bytes that are repeated to fill it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    pattern: bytes

    @property
    def nbytes(self) -> int:
        """Its size."""
        return prod(self.shape) * BYTES[self.dtype]


def tensors(layers: int) -> dict[str, tuple[int, ...]]:
    """Return shapes by name, as a folder has them."""
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens": (VOCABULARY, WIDTH)}
    for layer in range(layers):
        found |= {f"model.layers.{layer}.{name}": shape for name, shape in SHAPES.items()}
    return found | {"model.norm": (WIDTH,)}


@cache
def _bf16(size: int) -> bytes:
    values = np.random.default_rng(0).standard_normal(size).astype("<f4") * 0.02
    return (values.view("<u4") >> 16).astype("<u2").tobytes()


@cache
def _bytes(stop: int) -> bytes:
    return np.random.default_rng(0).integers(0, stop, CHUNK, np.uint8).tobytes()


def bf16(name: str, shape: tuple[int, ...]) -> Iterator[FileTensor]:
    """Yield a tensor's entry in bf16."""
    yield FileTensor(f"{name}.weight", "BF16", shape, _bf16(CHUNK))


def fp8(name: str, shape: tuple[int, ...]) -> Iterator[FileTensor]:
    """Yield a matrix's codes in E4M3, and a scale for 128 rows and columns."""
    yield FileTensor(f"{name}.weight", "F8_E4M3", shape, _bytes(0x70))
    blocks = tuple(-(-n // 128) for n in shape)
    scales = np.full(1 << 10, 1e-4, "<f4").tobytes()
    yield FileTensor(f"{name}.weight_scale_inv", "F32", blocks, scales)


def nvfp4(name: str, shape: tuple[int, ...]) -> Iterator[FileTensor]:
    """Yield a matrix's codes in E2M1, an E4M3 scale for 16 columns, and one for all."""
    height, width = shape
    yield FileTensor(f"{name}.weight", "U8", (height, width // 2), _bytes(256))
    yield FileTensor(f"{name}.weight_scale", "F8_E4M3", (height, width // 16), b"\x38" * (1 << 16))
    yield FileTensor(f"{name}.weight_scale_2", "F32", (), np.full(1, 1e-3, "<f4").tobytes())


FOLDERS: Mapping[
    str, tuple[Callable[[str, tuple[int, ...]], Iterator[FileTensor]], dict[str, Any]]
] = {
    "bf16": (bf16, {}),
    "fp8": (fp8, {"quant_method": "fp8", "weight_block_size": [128, 128]}),
    "nvfp4": (nvfp4, {"quant_method": "modelopt", "quant_algo": "NVFP4"}),
}
"""How a folder's matrices are stored, and what its configuration says of it."""
BYTES = {"BF16": 2, "F32": 4, "F8_E4M3": 1, "U8": 1}


def write_folder(folder: Path, gigabytes: float) -> Path:
    """Write a folder of so many bytes; its name is the format. The table and norms are in bf16."""
    entries, quantisation = FOLDERS[folder.name]

    def stored(layers: int) -> list[FileTensor]:
        return [
            part
            for name, shape in tensors(layers).items()
            for part in (entries if "proj" in name else bf16)(name, shape)
        ]

    one, two = (sum(part.nbytes for part in stored(count)) for count in (1, 2))
    layers = max(1, 1 + round((gigabytes * 1e9 - one) / (two - one)))
    folder.mkdir(parents=True)
    config = {
        "model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": WIDTH,
        "intermediate_size": INNER, "num_hidden_layers": layers, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "rms_norm_eps": 1e-5, "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
        **({"quantization_config": quantisation} if quantisation else {}),
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    header, end, parts = {}, 0, stored(layers)
    for part in parts:
        start, end = end, end + part.nbytes
        entry = {"dtype": part.dtype, "shape": list(part.shape), "data_offsets": [start, end]}
        header[part.name] = entry
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 64)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for part in parts:
            for start in range(0, part.nbytes, len(part.pattern)):
                file.write(part.pattern[: part.nbytes - start])
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
    """Do one thing; print what it takes over a process that has everything imported, and times."""
    import cortiq
    from cortiq.convert.run import convert_model

    loaded: list[cortiq.Model] = []
    if what == "convert":
        before, started = anonymous(), (time.perf_counter(), time.process_time())
        most = most_anonymous(lambda: convert_model(source, to, Path(to).name))
    else:
        cortiq.load("synthetic:tiny-llama", backend=what).close()
        before, started = anonymous(), (time.perf_counter(), time.process_time())
        most = most_anonymous(lambda: loaded.append(cortiq.load(source, backend=what)))
    times = time.perf_counter() - started[0], time.process_time() - started[1]
    print(json.dumps([most - before, *times]))


def reading(files: list[Path]) -> float:
    """Return the seconds of reading files, which are dropped from the system's cache first."""
    for file in files:
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    started = time.perf_counter()
    for file in files:
        with file.open("rb", buffering=0) as opened:
            while opened.read(CHUNK):
                pass
    return time.perf_counter() - started


def measured(what: str, source: Path, to: str = "", keep: str = "1") -> None:
    """Measure in a process of its own, and print a line."""
    files = [source] if source.is_file() else list(source.iterdir())
    size, read = sum(file.stat().st_size for file in files), reading(files)
    command = [sys.executable, __file__, "--child", what, str(source), to]
    environment = {**os.environ, "CORTIQ_KEEP_WEIGHTS": keep}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    what = f"{what} {Path(to).name}" if to else what if keep == "1" else f"{what}, not kept"
    if done.returncode:
        print(f"{what:14} {source.name:10} failed: {done.stderr.strip().splitlines()[-1]}")
        return
    taken, wall, seconds = json.loads(done.stdout)
    print(f"{what:14} {source.name:10} {size / 1e9:.2f} GB: {taken / 1e9:.3f} GB anonymous,"
          f" {taken / size:.3f} of it; {wall:.1f} s, {seconds:.1f} s of processor time; reading it"
          f" takes {read:.1f} s", flush=True)  # fmt: skip


def main() -> None:
    """Print one line a load and conversion."""
    if sys.argv[1:2] == ["--child"]:
        return child(*sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--formats", nargs="*", default=["q4_k", "fp8", "nvfp4", "bf16"])
    parser.add_argument("--backends", nargs="*", default=["reference", "cpu"])
    parser.add_argument("--convert", nargs="*", default=["w4"])
    parser.add_argument("--not-kept", action="store_true", help="load without kept weights, too")
    chosen = parser.parse_args()
    os.environ["CORTIQ_CACHE"] = str(chosen.folder / "cache")
    for name in chosen.formats:
        place = chosen.folder / name
        write = write_folder if name in FOLDERS else write_q4_k
        source = write(place if name in FOLDERS else place / "q4_k.gguf", chosen.gigabytes)
        for backend in chosen.backends:
            measured(backend, source)
            if backend == "cpu":
                measured(backend, source)
                if chosen.not_kept:
                    measured(backend, source, keep="0")
        shutil.rmtree(chosen.folder / "cache", ignore_errors=True)
        for form in chosen.convert:
            measured("convert", source, str(chosen.folder / form))
            shutil.rmtree(chosen.folder / form)
        shutil.rmtree(place)
    shutil.rmtree(chosen.folder)
    return None


if __name__ == "__main__":
    main()
