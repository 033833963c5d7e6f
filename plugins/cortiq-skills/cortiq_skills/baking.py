"""Baking of a skill by training, with PyTorch: which neurons a task needs, then a polish.

Phase A trains a gate for each neuron, of which a growing penalty closes those that a task does not
need. Phase B trains the feed-forward parts of the last layers under the gates that are left. The
weights of attention stay as they are, and no gradient passes through attention. Training is no part
of the numerics contract; its result is a file, whose bits are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from cortiq.errors import RequestError, UnsupportedError
from cortiq.numerics.contract import F32
from cortiq_skills.record import SkillRecord, TaskSkill

FIRST_LOGIT, OPEN = 2.0, 0.5
"""Logit that gates begin with, and the value above which a gate is open."""
EVERY = 30
"""Steps between two evaluations."""
PARTS = ("gate_proj", "up_proj", "down_proj")
Flags = npt.NDArray[np.bool_]
Progress = Callable[[str, int, float], None]


@dataclass(frozen=True)
class BakeOptions:
    """Options of baking.

    Attributes
    ----------
    steps_a, steps_b : of both phases. chunk : tokens of a window. held, windows : how many are held
        out, and trained on. target_sparsity : only gates at least so sparse count, if any are.
    aggression : factor of the penalty. align : open neurons of a layer are a multiple of this.
    uniform : all layers keep as many. polished : last layers that are polished.
    """

    steps_a: int = 240
    steps_b: int = 120
    chunk: int = 256
    held: int = 12
    windows: int = 112
    target_sparsity: float = 0.0
    aggression: float = 1.0
    align: int = 32
    uniform: bool = False
    polished: int = 4


@dataclass(frozen=True)
class BakedSkill:
    """A baked skill.

    Attributes
    ----------
    skill : matrices, in which closed neurons are zeros. keep : open neurons, by layer.
    perplexities : of held-out windows: of the model, under the gates, and polished.
    """

    skill: TaskSkill
    keep: dict[int, Flags] = field(repr=False)
    perplexities: tuple[float, float, float]


def text_windows(ids: Sequence[Sequence[int]], options: BakeOptions) -> list[list[int]]:
    """Return consecutive windows of texts, at most as many as are wanted.

    Raises
    ------
    RequestError : there are fewer than 24, or fewer than 12 that are not held out.
    """
    wanted, found = options.windows + options.held, list[list[int]]()
    for text in ids:
        for start in range(0, len(text), options.chunk):
            if start + options.chunk < len(text) and len(found) < wanted:
                found.append(list(text[start : start + options.chunk]))
    if len(found) < 24 or len(found) - options.held < 12:
        what = f"takes 24 windows of {options.chunk} tokens, 12 of them to train on; there are "
        raise RequestError(f"{what}{len(found)}", where="skill.bake", hint="give a longer text")
    return found


def keep_flags(
    logits: Sequence[npt.NDArray[np.floating]], align: int, uniform: bool
) -> list[Flags]:
    """Return which neurons stay: those of open gates, and of the others the largest logits, until
    their number is a multiple of `align`. With `uniform` it is the largest layer's in all.
    """
    counts = [int((np.asarray(row) > 0).sum()) for row in logits]
    rounded = [min(len(row), align * max(1, math.ceil(n / align)))
               for row, n in zip(logits, counts, strict=True)]  # fmt: skip
    if uniform:
        rounded = [min(len(row), max(rounded)) for row in logits]
    found = []
    for row, count in zip(logits, rounded, strict=True):
        kept = np.zeros(len(row), np.bool_)
        kept[np.argsort(-np.asarray(row), kind="stable")[:count]] = True
        found.append(kept)
    return found


def bake(
    model: Any,
    texts: Sequence[Sequence[int]],
    record: SkillRecord,
    options: BakeOptions | None = None,
    progress: Progress = lambda phase, step, perplexity: None,
) -> BakedSkill:
    """Return the skill that a model of transformers, in float32, needs for texts.

    The model's weights are as they were when this returns.

    Parameters
    ----------
    model : whose layers are `model.model.layers`, each with `self_attn` and a gated `mlp`.
    texts : token ids, without start tokens.
    progress : called with phase, step and perplexity at each evaluation.

    Raises
    ------
    UnsupportedError : the model is of another form. RequestError : the texts are too short.
    """
    chosen = options or BakeOptions()
    return _Baking(model, text_windows(texts, chosen), chosen, progress).run(record)


class _Baking:
    """A model that is baked."""

    def __init__(
        self, model: Any, windows: list[list[int]], options: BakeOptions, progress: Progress
    ) -> None:
        import torch

        self.torch, self.model, self.options, self.progress = torch, model, options, progress
        self.layers = list(getattr(getattr(model, "model", None), "layers", ()))
        whole = all(hasattr(layer, "self_attn") and all(hasattr(layer.mlp, p) for p in PARTS)
                    for layer in self.layers)  # fmt: skip
        if not self.layers or not whole:
            what = "has no layers of attention and a gated feed-forward part"
            raise UnsupportedError(what, where="skill.bake")
        batch = [torch.tensor([window]) for window in windows]
        self.held, self.train = batch[: options.held], batch[options.held :]
        width = self.layers[0].mlp.down_proj.weight.shape[1]
        self.gates: Any = torch.full((len(self.layers), width), 50.0)

    def run(self, record: SkillRecord) -> BakedSkill:
        """Train both phases; return the skill."""
        flags = [parameter.requires_grad for parameter in self.model.parameters()]
        for parameter in self.model.parameters():
            parameter.requires_grad_(False)
        own = [[p.weight.detach().clone() for p in self._parts(i)] for i in range(len(self.layers))]
        try:
            with self._hooked():
                base = self._perplexity()
                logits = self._phase_a()
                keep = keep_flags(logits, self.options.align, self.options.uniform)
                self.gates = self.torch.tensor(np.stack(keep), dtype=self.torch.float32) * 100 - 50
                masked = self._perplexity()
                polished = self._phase_b(masked)
            skill = TaskSkill(record, self._tensors(keep))
        finally:
            for index, weights in enumerate(own):
                for part, weight in zip(self._parts(index), weights, strict=True):
                    part.weight.data.copy_(weight)
            for parameter, flag in zip(self.model.parameters(), flags, strict=True):
                parameter.requires_grad_(flag)
        return BakedSkill(skill, dict(enumerate(keep)), (base, masked, polished))

    def _parts(self, index: int) -> list[Any]:
        return [getattr(self.layers[index].mlp, part) for part in PARTS]

    @contextmanager
    def _hooked(self) -> Iterator[None]:
        """Multiply activations by gates, and let no gradient pass attention."""

        def gated(index: int) -> Callable[[Any, Any], Any]:
            return lambda module, given: (given[0] * self._gate(index),)

        def cut(module: Any, given: Any, made: Any) -> Any:
            return (made[0].detach(), *made[1:]) if isinstance(made, tuple) else made.detach()

        handles = []
        for index, layer in enumerate(self.layers):
            handles.append(layer.mlp.down_proj.register_forward_pre_hook(gated(index)))
            handles.append(layer.self_attn.register_forward_hook(cut))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _gate(self, index: int) -> Any:
        soft = self.torch.sigmoid(self.gates[index])
        return soft if self.gates.requires_grad else (soft > OPEN).float()

    def _loss(self, window: Any) -> Any:
        """Return the mean of −ln p of a window's tokens but the first."""
        logits = self.model(window, use_cache=False).logits[0, :-1]
        return self.torch.nn.functional.cross_entropy(logits, window[0, 1:])

    def _perplexity(self) -> float:
        """Return the perplexity of held-out windows under open and closed gates."""
        trained, self.gates = self.gates, self.gates.detach()
        with self.torch.no_grad():
            losses = [float(self._loss(window)) for window in self.held]
        self.gates = trained
        return math.exp(math.fsum(losses) / len(losses))

    def _phase_a(self) -> list[npt.NDArray[np.floating]]:
        """Train the gates; return the best logits of each layer."""
        torch, options = self.torch, self.options
        self.gates = torch.full_like(self.gates, FIRST_LOGIT).requires_grad_(True)
        adam = torch.optim.Adam([self.gates], lr=0.1)
        penalty, best = 0.01 * options.aggression, None
        for step in range(options.steps_a):
            loss = self._loss(self.train[step % len(self.train)])
            loss = loss + penalty * torch.sigmoid(self.gates).mean()
            self._adapt(adam, loss, [self.gates])
            if (step + 1) % EVERY == 0:
                found = self._perplexity()
                self.progress("A", step + 1, found)
                penalty += 0.005 * options.aggression
                sparsity = float((self.gates.detach() <= 0).float().mean())
                ranked = self._rank(sparsity, found)
                if best is None or ranked < best[0]:
                    best = ranked, self.gates.detach().clone()
        chosen = self.gates.detach() if best is None else best[1]
        return list(chosen.numpy())

    def _rank(self, sparsity: float, perplexity: float) -> tuple[float, float]:
        """Return what is smaller for better gates: of sparse enough ones the perplexity counts."""
        short = max(self.options.target_sparsity - sparsity, 0.0)
        return short, perplexity

    def _phase_b(self, masked: float) -> float:
        """Train the last feed-forward parts under fixed gates; return the least perplexity."""
        torch, options = self.torch, self.options
        first = max(len(self.layers) - options.polished, 0)
        weights = [p.weight for i in range(first, len(self.layers)) for p in self._parts(i)]
        if not weights or not options.steps_b:
            return masked
        for weight in weights:
            weight.requires_grad_(True)
        adam, best = torch.optim.Adam(weights), (masked, [w.detach().clone() for w in weights])
        for step in range(options.steps_b):
            for group in adam.param_groups:
                group["lr"] = 1e-5 * 0.5 * (1 + math.cos(math.pi * step / options.steps_b))
            self._adapt(adam, self._loss(self.train[step % len(self.train)]), weights)
            if (step + 1) % EVERY == 0:
                found = self._perplexity()
                self.progress("B", step + 1, found)
                if found < best[0]:
                    best = found, [w.detach().clone() for w in weights]
        for weight, value in zip(weights, best[1], strict=True):
            weight.requires_grad_(False)
            weight.data.copy_(value)
        return best[0]

    def _adapt(self, adam: Any, loss: Any, parameters: list[Any]) -> None:
        adam.zero_grad()
        loss.backward()
        self.torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        adam.step()

    def _tensors(self, keep: list[Flags]) -> dict[tuple[str, str], npt.NDArray[np.float32]]:
        """Return the matrices with zeros for closed neurons, of layers that differ."""
        first, found = len(self.layers) - self.options.polished, {}
        for index, kept in enumerate(keep):
            if kept.all() and (index < first or not self.options.steps_b):
                continue
            for name, part in zip(PARTS, self._parts(index), strict=True):
                values = part.weight.detach().numpy().astype(F32, copy=True)
                values[(slice(None), ~kept) if name == "down_proj" else ~kept] = 0
                found["replace", f"model.layers.{index}.mlp.{name}.weight"] = values
        return found
