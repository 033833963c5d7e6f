"""Mutants of GGUF files and of folders: opened, built, tokenised and computed, or refused by name.

`python -m tests.fuzz.files --seconds 60`. Only errors of ours may come of a file, in little memory.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from fuzzing import memory_limit, mutate
from safetensors.numpy import save

import cortiq
from cortiq.convert.run import convert_model
from cortiq.errors import CortiqError
from cortiq.tokenizer.byte_level import byte_alphabet

from .mutants import main, mutated_text, rounds

MEBIBYTES = 1024
"""Address space that loading a mutant may take: the model has a few hundred KiB."""
WIDTH, VOCABULARY = 32, 300
SHAPES = {
    "attn_q": (32, 32), "attn_k": (16, 32), "attn_v": (16, 32), "attn_output": (32, 32),
    "ffn_gate": (48, 32), "ffn_up": (48, 32), "ffn_down": (32, 48), "attn_norm": (32,),
    "ffn_norm": (32,),
}  # fmt: skip
FOLDER = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}  # fmt: skip
CONFIG = {
    "model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": 48,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "rms_norm_eps": 1e-5, "max_position_embeddings": 64, "tie_word_embeddings": True,
    "rope_scaling": {"type": "linear", "factor": 2.0}, "architectures": ["LlamaForCausalLM"],
    "eos_token_id": [2, 3], "torch_dtype": "float32",
}  # fmt: skip
ADAPTER = "lora.gguf"
PIECES = [b"GGUF", b"\x00" * 8, b"\xff" * 8, b"llama.", b"general.alignment", b"\x08\x00\x00\x00"]


def weights() -> dict[str, np.ndarray]:
    """Tensors of one layer, by GGUF's names without prefix and end."""
    rng = np.random.default_rng(0)
    tensors = {n: rng.standard_normal(s).astype("f4") * 0.1 for n, s in SHAPES.items()}
    return tensors | {"token_embd": rng.standard_normal((VOCABULARY, WIDTH)).astype("f4")}


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


def folder_files() -> dict[str, bytes]:
    """Return the same model as a folder."""
    tensors = weights()
    named = {f"model.layers.0.{own}.weight": tensors[name] for name, own in FOLDER.items()}
    named["model.embed_tokens.weight"] = tensors["token_embd"]
    named["model.norm.weight"] = np.ones(WIDTH, "f4")
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    return {
        "config.json": json.dumps(CONFIG).encode(),
        "model.safetensors": save(named),
        "tokenizer.json": byte_level_json(),
        "tokenizer_config.json": json.dumps({"chat_template": template}).encode(),
        "generation_config.json": json.dumps({"eos_token_id": 2}).encode(),
    }


def _stored(values: dict[str, tuple[str, np.ndarray]]) -> bytes:
    """A safetensors file of arrays and the names of their types, narrow floats among them."""
    header, body = {}, b""
    for name, (kind, array) in values.items():
        data = np.ascontiguousarray(array).tobytes()
        place = [len(body), len(body) + len(data)]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": place}
        body += data
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def _packed_parts(stem: str, height: int, width: int) -> dict[str, tuple[str, np.ndarray]]:
    """A matrix quantised in the way that its name chooses: several methods in one folder."""
    rng = np.random.default_rng(len(stem))

    def numbers(high: int, *shape: int) -> np.ndarray:
        return rng.integers(0, high, shape)

    ones = np.full((height, width // 32), 0.01, "<f4")
    if "q_proj" in stem:
        words = numbers(1 << 31, height, width // 8).astype("<i4")
        parts = {"weight_packed": ("I32", words), "weight_scale": ("F32", ones),
                 "weight_shape": ("I64", np.array([height, width], "<i8"))}  # fmt: skip
    elif "gate" in stem:
        words = numbers(1 << 31, width // 8, height).astype("<i4")
        parts = {"qweight": ("I32", words), "scales": ("F32", ones.T),
                 "qzeros": ("I32", numbers(1 << 31, width // 32, height // 8).astype("<i4")),
                 "g_idx": ("I32", (np.arange(width) // 32).astype("<i4"))}  # fmt: skip
    elif "up" in stem:
        parts = {"weight_packed": ("U8", numbers(256, height, width // 2).astype("u1")),
                 "weight_scale": ("F8_E4M3", numbers(0x70, height, width // 16).astype("u1")),
                 "weight_global_scale": ("F32", np.array([900.0], "<f4"))}  # fmt: skip
    else:
        parts = {"weight": ("F8_E4M3", numbers(0x70, height, width).astype("u1")),
                 "weight_scale_inv": ("BF16", np.full((1, 1), 0x3C00, "<u2"))}  # fmt: skip
    return {f"{stem}.{end}": part for end, part in parts.items()}


def _other_parts(stem: str, height: int, width: int) -> dict[str, tuple[str, np.ndarray]]:
    """A matrix quantised by one of four other programs."""
    rng = np.random.default_rng(len(stem))

    def codes(*shape: int) -> np.ndarray:
        return rng.integers(0, 256, shape).astype("u1")

    if "q_proj" in stem or "gate" in stem:
        parts = _table_parts(codes(height * width // 2, 1), height, width)
    elif "k_proj" in stem:
        parts = {"weight": ("I8", codes(height, width)),
                 "SCB": ("F32", np.full(height, 0.5, "<f4"))}  # fmt: skip
    elif "v_proj" in stem or "up" in stem:
        parts = _hqq_parts(codes(height // 2, width), height, width)
    else:
        parts = {"weight": ("F8_E5M2", codes(height, width) & np.uint8(0xBF)),
                 "weight_scale": ("F32", np.full((height, 1), 0.1, "<f4"))}  # fmt: skip
    return {f"{stem}.{end}": part for end, part in parts.items()}


def _table_parts(codes: np.ndarray, height: int, width: int) -> dict[str, tuple[str, np.ndarray]]:
    """A matrix of bitsandbytes with scales of scales."""
    table = np.array([0, 0.0625, 8, 12, 4, 6, 2, 3]) / 12
    said = {"quant_type": "fp4", "blocksize": 32, "shape": [height, width],
            "nested_blocksize": 256, "nested_offset": 0.1}  # fmt: skip
    text = np.frombuffer(json.dumps(said).encode(), "u1")
    runs = height * width // 32
    return {
        "weight": ("U8", codes.astype("u1")),
        "weight.absmax": ("U8", np.arange(runs, dtype="u1")),
        "weight.quant_map": ("F32", np.concatenate([table, -table]).astype("<f4")),
        "weight.nested_absmax": ("F32", np.full(-(-runs // 256), 0.01, "<f4")),
        "weight.nested_quant_map": ("F32", np.linspace(-1, 1, 256).astype("<f4")),
        "weight.quant_state.bitsandbytes__fp4": ("U8", text),
    }


def _hqq_parts(codes: np.ndarray, height: int, width: int) -> dict[str, tuple[str, np.ndarray]]:
    """A matrix of HQQ's."""
    groups = height * width // 32
    return {
        "W_q": ("U8", codes.astype("u1")), "scale": ("F16", np.full((groups, 1), 0.01, "<f2")),
        "zero": ("F16", np.full((groups, 1), 7.5, "<f2")),
        "shape": ("I64", np.array([height, width], "<i8")),
        "group_size": ("I32", np.array(32, "<i4")), "axis": ("I32", np.array(1, "<i4")),
        "packing": ("U8", np.frombuffer(b"4bit_u8", "u1")),
    }  # fmt: skip


def quantised_files() -> dict[str, bytes]:
    """The folder with matrices that four programs quantised."""
    said = {"quantization_config": {"quant_method": "auto-round", "bits": 4}}
    return _packed_files(_packed_parts, said)


def other_files() -> dict[str, bytes]:
    """The folder with matrices that four other programs quantised, without a word of it."""
    return _packed_files(_other_parts, {})


def _packed_files(parts_of: Callable[..., Any], said: Mapping[str, Any]) -> dict[str, bytes]:
    tensors = weights()
    values = {
        "model.embed_tokens.weight": ("F32", tensors["token_embd"]),
        "model.norm.weight": ("F32", np.ones(WIDTH, "f4")),
    }
    for name, own in FOLDER.items():
        stem, shape = f"model.layers.0.{own}", SHAPES[name]
        matrix = len(shape) == 2 and shape[1] % 32 == 0
        plain = {f"{stem}.weight": ("F32", tensors[name])}
        values |= parts_of(stem, *shape) if matrix else plain
    return {**folder_files(), "config.json": json.dumps({**CONFIG, **said}).encode(),
            "model.safetensors": _stored(values)}  # fmt: skip


def byte_level_json() -> bytes:
    """A tokenizer.json of all bytes, two merges, and a token of its own."""
    pieces = [*byte_alphabet(), "he", "ll"]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
             "use_regex": True}  # fmt: skip
    added = {"id": len(pieces), "content": "<end>", "single_word": False, "lstrip": False,
             "rstrip": False, "normalized": False, "special": True}  # fmt: skip
    model = {"type": "BPE", "vocab": {piece: n for n, piece in enumerate(pieces)},
             "merges": ["h e", "l l"]}  # fmt: skip
    made = {"version": "1.0", "added_tokens": [added], "normalizer": {"type": "NFC"},
            "pre_tokenizer": level, "post_processor": level, "decoder": level,
            "model": model}  # fmt: skip
    return json.dumps(made).encode()


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
    own_files, own_gguf_files,
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
