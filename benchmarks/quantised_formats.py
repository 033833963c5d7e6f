"""Perplexity of SmolLM2 in other programs' formats, beside float32 on the same dequantised weights.

    python benchmarks/quantised_formats.py [--only nf4 ...] [--windows N] [--threads N]

The GGUF model is dequantised to float32 and put through each library, by rounding to nearest; the
folder is scored by cortiq, and the matrices that the codes mean by transformers in float32.
Needs transformers, compressed-tensors and mlx, and for their formats bitsandbytes, hqq, gptqmodel,
autoawq, amd-quark and nvidia-modelopt; a format whose library is missing is left out.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from quantised_packers import FORMATS, Format
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from cortiq.backend import CompileOptions
from cortiq.formats import fetch
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.model.score import score_ids
from cortiq.model.source import open_source
from cortiq.numerics.dequantise import dequantise_codes
from cortiq.numerics.layouts import Weight, decode, floats
from cortiq.options import LoadOptions, ScoreOptions
from cortiq_cpu.backend import CpuBackend

TEXT = Path("/usr/share/common-licenses/GPL-3")
WINDOW = 512
LARGEST_CHANGE = 0.001
Matrices = dict[str, torch.Tensor]


def dequantised() -> tuple[LlamaConfig, Matrices, Any]:
    """Return SmolLM2's configuration, its weights in float32, and its tokenizer."""
    path = str(fetch.pull("smollm2"))
    source, facts = open_source(path, LoadOptions()), open_checkpoint(path).config
    read = lambda key: facts[f"llama.{key}"]  # noqa: E731
    table = source.weights["model.embed_tokens.weight"]
    config = LlamaConfig(
        vocab_size=table.shape[0], hidden_size=read("embedding_length"),
        intermediate_size=read("feed_forward_length"), num_hidden_layers=read("block_count"),
        num_attention_heads=read("attention.head_count"), tie_word_embeddings=True,
        num_key_value_heads=read("attention.head_count_kv"),
        rms_norm_eps=float(read("attention.layer_norm_rms_epsilon")),
        max_position_embeddings=2048, rope_theta=float(read("rope.freq_base")),
    )  # fmt: skip
    weights = {n: torch.from_numpy(_values(w, n)) for n, w in source.weights.items()}
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, value in weights.items():
        count = next((n for end, n in heads.items() if end in name), 0)
        if count:  # GGUF's llama has the pairs of a rotation side by side
            pairs = value.reshape(count, -1, 2, value.shape[1])
            weights[name] = pairs.transpose(1, 2).reshape(value.shape).contiguous()
    return config, weights, source.tokenizer


def _values(weight: Weight, name: str) -> np.ndarray:
    plain = weight.layout.kind == "float"
    values = floats(weight, name) if plain else dequantise_codes(decode(weight, name))
    values = np.ascontiguousarray(values, np.float32)
    return values[0].copy() if name.endswith("norm.weight") else values.copy()


def float_perplexity(config: LlamaConfig, weights: Matrices, ids: list[int], windows: int) -> float:
    """Return transformers' perplexity in float32."""
    model = LlamaForCausalLM(config).eval()
    model.load_state_dict(weights, strict=False)
    total = 0.0
    with torch.no_grad():
        for start in range(0, windows * WINDOW, WINDOW):
            part = torch.tensor(ids[start : start + WINDOW + 1])
            logits = model(part[None, :-1], use_cache=False).logits[0].double()
            picked = logits.log_softmax(-1).gather(1, part[1:, None])
            total -= float(picked.sum())
    return math.exp(total / (windows * WINDOW))


def written(folder: Path, form: Format, weights: Matrices, config: LlamaConfig) -> Matrices:
    """Write the folder of a format; return what its tensors mean."""
    tensors, meant = {}, {}
    for name, value in weights.items():
        if not name.endswith("_proj.weight"):
            tensors[name] = meant[name] = value
            continue
        parts, exact = form.pack(value)
        meant[name] = exact.float()
        stem = name.removesuffix("weight")
        tensors |= {stem + end: part.detach().contiguous() for end, part in parts.items()}
    save_file({n: t.clone() for n, t in tensors.items()}, folder / "model.safetensors")
    said = json.loads(config.to_json_string(use_diff=False)) | {form.key: dict(form.config)}
    (folder / "config.json").write_text(json.dumps({**said, "architectures": ["LlamaForCausalLM"]}))
    return meant


def scored(folder: Path, text: str, tokenizer: Any, windows: int, threads: int) -> float:
    """Return cortiq's perplexity of a folder, on the CPU."""
    source = open_source(str(folder), LoadOptions())
    options = CompileOptions(threads=threads)
    executable = CpuBackend().compile(source.program, dict(source.weights), options)
    ids = tokenizer.encode(text, add_bos=False)
    found = score_ids(executable, tokenizer, ids, ScoreOptions(window=WINDOW, windows=windows))
    executable.close()
    source.close()
    return found.perplexity


def main() -> None:
    """Print one line a format."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    config, weights, tokenizer = dequantised()
    text = TEXT.read_text()
    ids = list(tokenizer.encode(text, add_bos=False))
    before = float_perplexity(config, weights, ids, chosen.windows)
    print(f"{'float32':22} {before:.4f}", flush=True)
    for form in FORMATS:
        if chosen.only and not any(word in form.name for word in chosen.only):
            continue
        start = os.times().user
        try:
            with tempfile.TemporaryDirectory() as place:
                meant = written(Path(place), form, weights, config)
                exact = float_perplexity(config, meant, ids, chosen.windows)
                found = scored(Path(place), text, tokenizer, chosen.windows, chosen.threads)
        except ImportError as error:
            print(f"{form.name:22} left out: {error}", flush=True)
            continue
        change = found / exact - 1
        verdict = "within" if abs(change) <= LARGEST_CHANGE else "beyond"
        seconds = os.times().user - start
        print(
            f"{form.name:22} cortiq {found:.4f}, float32 {exact:.4f}: {change:+.4%} ({verdict} "
            f"0.1%), of unquantised {exact / before - 1:+.2%}, {seconds:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
