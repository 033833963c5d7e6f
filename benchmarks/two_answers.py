"""Compare answers across batch sizes, threads and engines, here and elsewhere.

    python benchmarks/two_answers.py [--prompts 10] [--tokens 48]

SmolLM2's GGUF file, greedy, ten prompts. Elsewhere: transformers on PyTorch, its weights
dequantised by the `gguf` package, alone and in a batch of the same prompt, with one thread and two,
in float32 and bfloat16; and what llama.cpp made of the same ids (recorded: `tests/data`). Here:
every backend that is installed, alone and in a batch, with other threads, chunks, and a drafter.
Counted are prompts whose tokens, and prompts whose logits before the first token, are the same as
another way's. Needs transformers, torch and gguf; minutes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import cortiq
from cortiq.formats import fetch
from cortiq.plugins import availability, default_plugins

DATA = Path(__file__).parent.parent / "tests" / "data" / "llama_cpp_streams.json"
NAMES = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
BATCH = 8


class GeneratedAnswer(NamedTuple):
    """Tokens, and something that is equal where all bits of the first logits are."""

    tokens: list[int]
    bits: Any


def torch_model(path: Path) -> Any:
    """Return transformers' Llama with the file's weights, dequantised."""
    import torch
    import transformers
    from gguf import GGUFReader, dequantize

    reader = GGUFReader(path)
    fields = {name.partition(".")[2]: field.contents() for name, field in reader.fields.items()}
    heads, kv_heads = fields["attention.head_count"], fields["attention.head_count_kv"]
    config = transformers.LlamaConfig(
        vocab_size=len(fields["ggml.tokens"]), hidden_size=fields["embedding_length"],
        intermediate_size=fields["feed_forward_length"], num_hidden_layers=fields["block_count"],
        num_attention_heads=heads, num_key_value_heads=kv_heads, tie_word_embeddings=True,
        rms_norm_eps=fields["attention.layer_norm_rms_epsilon"],
        rope_theta=fields["rope.freq_base"], max_position_embeddings=fields["context_length"],
    )  # fmt: skip
    state = {}
    for tensor in reader.tensors:
        values = np.array(dequantize(tensor.data, tensor.tensor_type), np.float32)
        *block, name = tensor.name.removesuffix(".weight").removeprefix("blk.").split(".")
        for part, count in (("attn_q", heads), ("attn_k", kv_heads)):
            if name == part:  # GGUF holds the halves of a rotated head interleaved
                shape = (count, -1, 2, values.shape[1])
                values = values.reshape(shape).swapaxes(1, 2).reshape(values.shape)
        layer = f"model.layers.{block[0]}." if block else ""
        state[f"{layer}{NAMES[name]}.weight"] = torch.from_numpy(values)
    model = transformers.LlamaForCausalLM(config)
    model.load_state_dict(state, strict=False)
    return model.eval()


def with_torch(model: Any, kind: str, threads: int, batch: int, tokens: int) -> Callable:
    """Return a way to answer: transformers in a format, with threads, in a batch of the same
    prompt.
    """
    import torch

    def answer(ids: Sequence[int]) -> GeneratedAnswer:
        torch.set_num_threads(threads)
        typed = model.to(getattr(torch, kind))
        with torch.no_grad():
            prompts = torch.tensor([list(ids)] * batch)
            first = typed(prompts).logits[0, -1].float().numpy().tobytes()
            made = typed.generate(
                prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=tokens,
                do_sample=False, pad_token_id=0, eos_token_id=None,
            )  # fmt: skip
        return GeneratedAnswer(made[0, len(ids) :].tolist(), first)

    return answer


def with_cortiq(backend: str, threads: int, batch: int, tokens: int, **options: Any) -> Callable:
    """Return a way to answer: cortiq on a backend, alone or among others."""
    model = cortiq.load("smollm2", backend=backend, threads=threads)
    others = [[7, 11, 13 + n] * (n + 1) for n in range(batch - 1)]

    def answer(ids: Sequence[int]) -> GeneratedAnswer:
        prompts = [list(ids), *others]
        made = model.generate_many(
            prompts, max_tokens=tokens, temperature=0, ignore_eos=True, **options
        )[0]
        return GeneratedAnswer(list(made.token_ids), made.step_digests[0])

    return answer


def here(tokens: int) -> dict[str, Callable]:
    """Answer in every way with cortiq; compare all with the first."""
    ways = {}
    for name, backend in default_plugins().backends.items():
        if availability(backend)[1] is None and backend.priority >= 0:
            ways[name] = with_cortiq(name, 1, 1, tokens)
    best = next(iter(default_plugins().backends))
    ways[f"{best}, two threads"] = with_cortiq(best, 2, 1, tokens)
    ways[f"{best}, in a batch of {BATCH}"] = with_cortiq(best, 1, BATCH, tokens)
    ways[f"{best}, prompt in chunks of 3"] = with_cortiq(best, 1, 1, tokens, chunk_rows=3)
    ways[f"{best}, drafting"] = with_cortiq(best, 1, 1, tokens, draft="lookup")
    return ways


def elsewhere(tokens: int, recorded: dict[tuple[int, ...], list[int]]) -> dict[str, Callable]:
    """Answer in every way with transformers, and take llama.cpp's recorded answer.

    Float32 is measured first: turning to bfloat16 changes the model for good.
    """
    model = torch_model(fetch.resolve("smollm2"))
    ways: dict[str, Callable] = {"float32": with_torch(model, "float32", 1, 1, tokens)}
    ways["float32, two threads"] = with_torch(model, "float32", 2, 1, tokens)
    ways[f"float32, in a batch of {BATCH}"] = with_torch(model, "float32", 1, BATCH, tokens)
    ways["llama.cpp"] = lambda ids: GeneratedAnswer(recorded[tuple(ids)][:tokens], None)
    ways["bfloat16"] = with_torch(model, "bfloat16", 1, 1, tokens)
    ways[f"bfloat16, in a batch of {BATCH}"] = with_torch(model, "bfloat16", 1, BATCH, tokens)
    return ways


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=48)
    given = parser.parse_args()
    cases = json.loads(DATA.read_text())["SmolLM2-135M-Instruct.Q4_1"][: given.prompts]
    recorded = {tuple(case["ids"]): case["greedy"] for case in cases}
    for title, ways in (("cortiq", here(given.tokens)), ("", elsewhere(given.tokens, recorded))):
        made: dict[str, list[GeneratedAnswer]] = {}
        print(f"| {title or 'elsewhere'} | compared with | same tokens | same logits |")
        print("|---|---|---|---|", flush=True)
        for way, answer in ways.items():
            made[way] = [answer(ids) for ids in recorded]
            base = next(iter(made)) if title else way.split(", ")[0].replace("llama.cpp", "float32")
            if base != way or title:
                print(row(way, base, made[way], made[base]), flush=True)


def row(
    way: str, base: str, made: Sequence[GeneratedAnswer], others: Sequence[GeneratedAnswer]
) -> str:
    """Return a table row: how many prompts have the same tokens, and the same bits."""
    pairs = list(zip(made, others, strict=True))
    tokens = sum(a.tokens == b.tokens for a, b in pairs)
    bits = sum(a.bits == b.bits for a, b in pairs)
    shown = "not recorded" if made[0].bits is None else f"{bits} of {len(made)}"
    return f"| {way} | {base} | {tokens} of {len(made)} | {shown} |"


if __name__ == "__main__":
    main()
