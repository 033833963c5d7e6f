"""Fit an EAGLE-3 head to a model and measure its gain: `python benchmarks/eagle3_head.py FOLDER`.

    texts    greedy answers of the model to prompts made of forms and topics, and the rows of the
             tapped layers, as the backend computes them
    fit      the head, by gradient descent on its drafts' cross entropy, three steps deep: outputs
             stand in for fused rows as when drafting
    measure  answers about topics that were left out, with the head and without, in turn, by
             processor time; the tokens must be equal

Each step is skipped where FOLDER has what it makes.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch
from torch import nn
from torch.nn import functional as F

import cortiq
from cortiq.backend import Batch, Named, Row
from cortiq.engine.drafters.combined import CombinedDrafter
from cortiq.engine.drafters.heads import HeadDrafter
from cortiq.engine.drafters.kinds import EAGLE3, LOOKUP
from cortiq.engine.drafters.lookup import LookupDrafter
from cortiq.engine.drafting import Speculation
from cortiq.engine.engine import Engine
from cortiq.engine.request import make_request
from cortiq.options import GenerateOptions
from cortiq_reference.ideal import dequantise

FORMS = (
    "Write an email to a colleague about {}.",
    "Write an email to a customer about {}.",
    "Write a letter to a neighbour about {}.",
    "Write an email to a teacher about {}.",
)
"""Letters: of one domain, whose phrases come again, as a head is fitted to what it is used for."""
TOPICS = """bread|rivers|the violin|bicycles|gravity|bees|chess|volcanoes|steam engines|glass|rain
|tea|whales|the printing press|maps|clocks|magnets|forests|bridges|salt|the moon|soap|trains|paper
|honey|electricity|ships|horses|the alphabet|mountains|vaccines|cotton|lighthouses|photography
|rice|castles|earthquakes|coffee|cats|telescopes|ice|potatoes|libraries|owls|iron|sailing|gardens
|the piano|sleep|mirrors|football|stars|windmills|wolves|silk|deserts|penguins|radio|pottery|oceans
"""
HELD = 12
"""Topics at the end that nothing is fitted on."""
STEPS, DECAY, CONTEXT = 2, 0.8, 384


def topics() -> list[str]:
    """Return the topics."""
    return [topic.strip() for topic in TOPICS.replace("\n", "").split("|")]


def prompts(held: bool) -> list[str]:
    """Return prompts about topics that are left out, or about the others."""
    chosen = topics()[-HELD:] if held else topics()[:-HELD]
    return [form.format(topic) for topic in chosen for form in FORMS]


def write_texts(folder: Path, model: Any, tokens: int, taps: list[int]) -> None:
    """Generate answers, and save them with the tapped rows."""
    names = [Named(f"layers.{n - 1}.out") for n in taps]
    asked = [model.chat_ids([{"role": "user", "content": text}]) for text in prompts(held=False)]
    arrays, started = {}, time.time()
    for at in range(0, len(asked), 16):
        some = asked[at : at + 16]
        made = model.generate_many(some, max_tokens=tokens, temperature=0)
        for n, (prompt, answer) in enumerate(zip(some, made, strict=True), at):
            ids = [*prompt, *answer.token_ids]
            state = model.executable.open(len(ids))
            rows = [Row(state, i, t, tuple(names)) for i, t in enumerate(ids)]
            found = model.executable.forward(Batch(rows)).result().rows
            state.release()
            kept = np.array([np.concatenate([row[name] for name in names]) for row in found])
            arrays |= {f"ids.{n}": np.array([len(prompt), *ids]), f"rows.{n}": kept.astype("f2")}
        print(f"texts: {at + len(some)} of {len(asked)}, {time.time() - started:.0f} s", flush=True)
    np.savez(folder / "texts.npz", **arrays)


class FittedHead(nn.Module):
    """The head, with the trunk's table and output rows as they are at the beginning."""

    def __init__(self, model: Any, tokens: torch.Tensor, inner: int, taps: int) -> None:
        super().__init__()
        facts, weights = model.program.facts, model.executable_weights
        width, self.heads, self.groups = facts["width"], facts["heads"], facts["kv_heads"]
        self.dim = width // self.heads
        sizes = {
            "fc": (taps * width, width), "q_proj": (2 * width, self.heads * self.dim),
            "k_proj": (2 * width, self.groups * self.dim), "o_proj": (self.heads * self.dim, width),
            "v_proj": (2 * width, self.groups * self.dim), "gate_proj": (width, inner),
            "up_proj": (width, inner), "down_proj": (inner, width), "lm_head": (width, len(tokens)),
        }  # fmt: skip
        for name, (before, after) in sizes.items():
            setattr(self, name, nn.Linear(before, after, bias=False))
        norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm", "norm")
        for name in norms:
            setattr(self, name, nn.RMSNorm(width, eps=1e-5))
        table = torch.tensor(weights["table"], dtype=torch.float32)
        self.table = nn.Embedding.from_pretrained(table, freeze=True)
        with torch.no_grad():
            self.lm_head.weight.copy_(torch.tensor(weights["head"], dtype=torch.float32)[tokens])
            self.norm.weight.copy_(torch.tensor(weights["norm"], dtype=torch.float32))
            self.fc.weight.mul_(0.02)
            self.fc.weight[:, -width:].add_(torch.eye(width))
            self.o_proj.weight.mul_(0.1)
            self.down_proj.weight.mul_(0.1)

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        """Rotate heads [batch, rows, heads, dim] by their positions."""
        half = self.dim // 2
        angle = torch.arange(x.shape[1])[:, None] * 10000.0 ** (-torch.arange(half) / half)
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

    def step(
        self, tokens: torch.Tensor, given: torch.Tensor, past: list[tuple[torch.Tensor, ...]]
    ) -> torch.Tensor:
        """Return outputs; row t of step s sees keys of the first step before t − s, then one each
        of the later steps.
        """
        x = torch.cat([self.input_layernorm(self.table(tokens)), self.hidden_norm(given)], dim=-1)
        batch, rows = tokens.shape
        q, k, v = (getattr(self, f"{r}_proj")(x).view(batch, rows, -1, self.dim) for r in "qkv")
        q, k = self.turned(q), self.turned(k)
        k, v = (y.repeat_interleave(self.heads // self.groups, dim=2) for y in (k, v))
        past.append((k, v))
        first, depth = past[0], len(past) - 1
        scores = torch.einsum("bthd,bjhd->bhtj", q, first[0])
        seen = torch.ones(rows, rows, dtype=torch.bool).tril(-depth)
        scores = scores.masked_fill(~seen, -torch.inf)
        later = []
        for s, (keys, _) in enumerate(past[1:], 1):
            moved = torch.roll(keys, depth - s, dims=1)
            later.append(torch.einsum("bthd,bthd->bht", q, moved)[..., None])
        p = (torch.cat([scores, *later], dim=-1).float() * self.dim**-0.5).softmax(dim=-1)
        y = torch.einsum("bhtj,bjhd->bthd", p[..., :rows].to(v.dtype), first[1])
        for s, (_, values) in enumerate(past[1:], 1):
            weight = p[..., rows + s - 1].transpose(1, 2)[..., None]
            y = y + weight * torch.roll(values, depth - s, dims=1)
        h = given + self.o_proj(y.reshape(batch, rows, -1).to(given.dtype))
        x = self.post_attention_layernorm(h)
        return h + self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))

    def losses(
        self, ids: torch.Tensor, rows: torch.Tensor, lanes: torch.Tensor, answer: torch.Tensor
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield the loss of every step, and the share of drafts that are right."""
        given, past, right = self.fc(rows), [], None
        for step in range(STEPS):
            outputs = self.step(ids[:, 1:-1], given[:, :-2] if step == 0 else given, past)
            scores, wanted = self.lm_head(self.norm(outputs)), lanes[ids[:, 2:]]
            counted = answer[:, 2:] & (wanted >= 0)
            counted[:, :step] = False
            loss = F.cross_entropy(scores[counted].float(), wanted[counted])
            hit = scores.argmax(dim=-1) == wanted
            right = hit if right is None else hit & torch.roll(right, 1, dims=1)
            yield loss, right[answer[:, 2:]].float().mean()
            given = torch.roll(outputs, 1, dims=1)


def fit(folder: Path, model: Any, a: argparse.Namespace) -> None:
    """Fit a head and write it as EAGLE's authors do."""
    held = np.load(folder / "texts.npz")
    texts = [held[f"ids.{n}"] for n in range(len(held.files) // 2)]
    seen = Counter(int(t) for text in texts for t in text[1:])
    tokens = torch.tensor(sorted(t for t, _ in seen.most_common(a.scored)))
    lanes = torch.full((model.program.facts["vocab_size"],), -1)
    lanes[tokens] = torch.arange(len(tokens))
    torch.manual_seed(0)
    head = FittedHead(model, tokens, a.inner, len(a.taps))
    trained = [p for p in head.parameters() if p.requires_grad]
    steps = a.epochs * (len(texts) // a.batch)
    optimiser = torch.optim.AdamW(trained, lr=a.rate, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, a.rate, total_steps=steps + 1, pct_start=0.05
    )
    started, random = time.time(), np.random.default_rng(0)
    for epoch in range(a.epochs):
        order, kept = random.permutation(len(texts)), []
        for at in range(0, len(order) - a.batch + 1, a.batch):
            batch = _batch(held, order[at : at + a.batch])
            with torch.autocast("cpu", torch.bfloat16):
                found = list(head.losses(*batch[:2], lanes, batch[2]))
            loss = sum(DECAY**s * it for s, (it, _) in enumerate(found))
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(trained, 1.0)
            optimiser.step()
            schedule.step()
            kept.append([float(share) for _, share in found])
        shares = " ".join(f"{share:.3f}" for share in np.mean(kept, axis=0))
        print(f"epoch {epoch + 1}: {shares} right, {time.time() - started:.0f} s", flush=True)
        if epoch % 4 == 3 or epoch + 1 == a.epochs:
            _write(folder, head, tokens, model, a)


def _batch(held: Any, chosen: Any) -> tuple[torch.Tensor, ...]:
    """Return ids, tapped rows, and whether an id is of an answer; short texts are filled up."""
    texts = [held[f"ids.{n}"][: CONTEXT + 1] for n in chosen]
    longest = max(map(len, texts)) - 1
    ids, answer = torch.zeros(2, len(texts), longest, dtype=torch.long)
    width = held[f"rows.{chosen[0]}"].shape[1]
    rows = torch.zeros(len(texts), longest, width)
    for i, (n, text) in enumerate(zip(chosen, texts, strict=True)):
        size = len(text) - 1
        ids[i, :size] = torch.tensor(text[1:])
        answer[i, int(text[0]) : size] = 1
        rows[i, :size] = torch.tensor(held[f"rows.{n}"][:size].astype("f4"))
    return ids, rows, answer.bool()


def _write(folder: Path, head: FittedHead, tokens: torch.Tensor, model: Any, a: Any) -> None:
    names = {"fc": "", "lm_head": "", "norm": "", "q_proj": "midlayer.self_attn.",
             "k_proj": "midlayer.self_attn.", "v_proj": "midlayer.self_attn.",
             "o_proj": "midlayer.self_attn.", "gate_proj": "midlayer.mlp.",
             "up_proj": "midlayer.mlp.", "down_proj": "midlayer.mlp."}  # fmt: skip
    values = {n: p.detach().numpy() for n, p in head.named_parameters() if p.requires_grad}
    tensors = {
        f"{names.get(n.removesuffix('.weight'), 'midlayer.')}{n}": np.ascontiguousarray(value)
        for n, value in values.items()
    }
    tensors["d2t"] = (tokens - torch.arange(len(tokens))).numpy()
    facts = model.program.facts
    config = {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "num_hidden_layers": 1,
        "vocab_size": facts["vocab_size"], "hidden_size": facts["width"], "rms_norm_eps": 1e-5,
        "intermediate_size": a.inner, "num_attention_heads": facts["heads"],
        "num_key_value_heads": facts["kv_heads"], "rope_theta": 10000.0,
        "max_position_embeddings": model.context, "draft_vocab_size": len(tokens),
        "eagle_aux_hidden_state_layer_ids": a.taps,
    }  # fmt: skip
    out = folder / "head"
    out.mkdir(exist_ok=True)
    safetensors.numpy.save_file(tensors, out / "model.safetensors")
    (out / "config.json").write_text(json.dumps(config))


def ways(a: argparse.Namespace) -> dict[str, Speculation | None]:
    """Return what is compared: the head, what users get with it, lookups alone."""
    own, copies = replace(EAGLE3, extra=0).policies(a.depth or None), LOOKUP.policies(None)
    combined = Speculation(CombinedDrafter(HeadDrafter("eagle3")), EAGLE3.policies(a.depth or None))
    return {
        "plain": None, "the head": Speculation(HeadDrafter("eagle3"), own),
        "the head and lookups": combined, "lookups": Speculation(LookupDrafter(), copies),
    }  # fmt: skip


def measure(folder: Path, a: argparse.Namespace) -> None:
    """Print the gains on answers about the topics that were left out."""
    how = {"backend": a.backend, "threads": 1, "heads": f"eagle3:{folder / 'head'}"}
    with cortiq.load(a.model, **how) as model:
        drafters = ways(a)
        seconds, rounds, count = Counter[str](), Counter[str](), 0
        for n, text in enumerate(prompts(held=True)[:: a.every]):
            prompt = model.chat_ids([{"role": "user", "content": text}])
            options = GenerateOptions(max_tokens=a.tokens, temperature=0.0)
            request = make_request(prompt, options, model.program, model.eos_ids)
            answers = []
            for way, speculation in drafters.items():
                with Engine(model.executable, model.tokenizer, clock=time.process_time) as engine:
                    sequence = engine.submit(request, speculation=speculation)
                    engine.step()
                    started = time.process_time()
                    engine.run()
                    seconds[way] += (time.process_time() - started) * bool(n)
                answers.append(list(sequence.output.token_ids))
                drafts = sequence.stats.drafts
                assert answers[-1] == answers[0] and not drafts.error
                tallies = drafts.drafters.values()
                rounds[way] += drafts.plain_rounds + sum(tally.rounds for tally in tallies)
            count += len(answers[0])
    for way in [way for way in drafters if drafters[way]]:
        gain, each = seconds["plain"] / seconds[way], count / rounds[way]
        print(f"{way}: {gain:.3f} times plain, {each:.2f} tokens a round, {count} tokens")


def opened(a: argparse.Namespace) -> Any:
    """Open the model, with the matrices that a head begins with."""
    model = cortiq.load(a.model, backend=a.backend, threads=1)
    weights = model._source.weights
    by_node = {
        n.name: next(iter(n.weights.values())) for n in model.program.trunk.nodes if n.weights
    }
    names = {"table": "embed", "head": "logits", "norm": "hidden"}
    model.executable_weights = {k: dequantise(weights[by_node[n]]) for k, n in names.items()}
    model.executable_weights["norm"] = model.executable_weights["norm"].reshape(-1)
    return model


def main() -> None:
    """Do the steps whose results are not there yet, then measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--taps", type=int, nargs="+", default=[2, 15, 27])
    for name, default in (("tokens", 144), ("scored", 3072), ("inner", 768), ("epochs", 20),
                          ("batch", 1), ("depth", 0), ("every", 4)):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rate", type=float, default=1e-3)
    a = parser.parse_args()
    a.folder.mkdir(exist_ok=True)
    if not (a.folder / "head").exists():
        with opened(a) as model:
            if not (a.folder / "texts.npz").exists():
                write_texts(a.folder, model, a.tokens, a.taps)
            fit(a.folder, model, a)
    measure(a.folder, a)


if __name__ == "__main__":
    main()
