"""A smaller model without the neurons that a mask closes, as a folder of its own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cortiq.convert.beside import files_beside
from cortiq.convert.own_container import OwnContainer
from cortiq.convert.plan import PlannedTensor, described_plan
from cortiq.convert.recipes import KEEP
from cortiq.convert.senses import left_out, with_senses
from cortiq.convert.writing import ConvertedModel, Progress, write_planned
from cortiq.errors import RequestError, UnsupportedError
from cortiq.formats.checkpoint import Checkpoint, open_checkpoint
from cortiq.formats.digest import file_sha256
from cortiq.formats.fetch import resolve
from cortiq.formats.own_layout import OwnTensor
from cortiq.formats.text_model import text_section
from cortiq.ir import Program
from cortiq.models import load_program
from cortiq.models.bind import LoadedProgram
from cortiq.models.tensor_pieces import TensorSlice
from cortiq.models.weights import raw_weight
from cortiq.numerics.contract import F32
from cortiq.numerics.layouts import LAYOUTS, Weight
from cortiq.plugins import default_plugins
from cortiq_masks.files import read_mask
from cortiq_masks.narrowing import Narrowing, gathered, narrowings, roles_of
from cortiq_masks.refit import Refit
from cortiq_masks.sites import feed_forward_nodes
from cortiq_masks.tubes import LayerTubes

WIDTH_KEYS = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
"""Keys of config.json that say how many neurons a feed-forward part has."""


def prune_model(
    model: str,
    mask: str | Path,
    out: str | Path,
    *,
    refit: Refit | None = None,
    progress: Progress | None = None,
) -> ConvertedModel:
    """Write a model without the neurons that a mask closes to a new folder.

    All layers keep as many neurons as the one that needs most, since config.json says one width;
    the others' are zeros. Codes and scales stay as they are, so that the logits of a model in w8 or
    w16 are the masked model's to the bit.

    Parameters
    ----------
    model : a Hugging Face folder, or one of `cortiq convert`. mask : a file.
    refit : gives `down` matrices in place of the model's own columns.

    Raises
    ------
    RequestError : `out` exists. UnsupportedError : the model is no such folder, or the mask does
    more than close neurons.
    """
    path = Path(mask)
    held = read_mask(path)
    rule = {"recipe": KEEP, "mask": file_sha256(path), "refit": refit is not None}
    left = partial(narrowings, held, where=str(path), uniform=True)
    return _rewritten(model, out, left, rule, refit, progress)


def reorder_model(
    model: str,
    tubes: Mapping[int, LayerTubes],
    out: str | Path,
    *,
    progress: Progress | None = None,
) -> ConvertedModel:
    """Write a model whose neurons lie in the order of tubes to a new folder.

    Products under one scale a row are exact sums of integers, so a model in w8 or w16 has the
    logits that it had, to the bit.

    Raises
    ------
    RequestError : `out` exists. UnsupportedError : the model is no Hugging Face folder, its `down`
    matrices have blocks of columns, or the tubes are another model's.
    """
    orders = {layer: one.order.tolist() for layer, one in tubes.items()}
    digest = hashlib.sha256(json.dumps(sorted(orders.items())).encode()).hexdigest()
    rule = {"recipe": KEEP, "tubes": digest}
    return _rewritten(model, out, partial(_reordered, tubes), rule, None, progress)


def _reordered(tubes: Mapping[int, LayerTubes], program: Program) -> dict[int, Narrowing]:
    """Return all neurons of each part, in the order of its tubes."""
    nodes = feed_forward_nodes(program)
    for layer, one in tubes.items():
        width = nodes[layer].op.inner if layer in nodes else 0  # type: ignore[attr-defined]
        if sorted(one.order) != list(range(width)):
            what = f"orders {len(one.order)} neurons of layer {layer}, the model has {width}"
            raise UnsupportedError(what, where="tubes")
        layout = LAYOUTS[program.weights[nodes[layer].weights["down"]].layout or "f32"]
        if layout.block:
            what = f"layer {layer} has columns in blocks of {layout.block}"
            raise UnsupportedError(what, where="tubes", hint="convert the model to w8 first")
    return {i: Narrowing(one.order, np.zeros(len(one.order), np.bool_)) for i, one in tubes.items()}


def _rewritten(
    model: str,
    out: str | Path,
    left: Callable[[Program], dict[int, Narrowing]],
    rule: Mapping[str, Any],
    refit: Refit | None,
    progress: Progress | None,
) -> ConvertedModel:
    checkpoint = open_checkpoint(Path(resolve(model, progress=progress)))
    try:
        made = _Rewriting(checkpoint, left, rule, refit)
        written = write_planned(Path(out).absolute(), *made.planned(), progress=progress)
        return replace(written, notes=left_out(checkpoint, made.loaded.program))
    finally:
        checkpoint.close()


class _Rewriting:
    """A model with other neurons, or in another order.

    Parameters
    ----------
    left : gives what is left of each part of a program. rule : what the folder says of its making.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        left: Callable[[Program], dict[int, Narrowing]],
        rule: Mapping[str, Any],
        refit: Refit | None,
    ) -> None:
        if checkpoint.kind != "huggingface":
            what = "is no Hugging Face folder, and its metadata says one width elsewhere"
            raise UnsupportedError(what, where=str(checkpoint.path))
        self.checkpoint, self.rule, self.refit = checkpoint, rule, refit
        families = default_plugins().families
        self.loaded: LoadedProgram = load_program(
            checkpoint, heads="off", families=families, column_orders=False
        )
        program = self.loaded.program
        self.left = left(program)
        self.roles = roles_of(program, self.left)
        self.layers = {name: layer for layer, one in self.left.items()
                       for name, (_, held) in self.roles.items() if held is one}  # fmt: skip

    def planned(self) -> tuple[list[PlannedTensor], OwnContainer, str]:
        """Return the tensors, the folder that takes them, and a text that tells plans apart."""
        users: dict[str, list[tuple[str, TensorSlice]]] = {}
        for weight, pieces in self.loaded.pieces.items():
            for piece in pieces:
                users.setdefault(piece.tensor, []).append((weight, piece))
        names = [name for name in self.checkpoint.tensor_names if name in users]
        texts = [self._planned(name, users[name]) for name in names]
        tensors = with_senses(texts, self.checkpoint, self.loaded.program)
        said = {"source": self.checkpoint.model_hash(), "rule": self.rule}
        beside = files_beside(self.checkpoint, self.loaded.program)
        beside["config.json"] = self._config(beside["config.json"])
        plan = json.dumps([said, described_plan(tensors)])
        return tensors, OwnContainer(tensors, said, beside), plan

    def _config(self, text: bytes) -> bytes:
        """Return config.json with the new width."""
        whole: dict[str, Any] = json.loads(text)
        config = text_section(whole)
        before = {len(self._dense(layer)) for layer in self.left}
        after = {one.width for one in self.left.values()}
        if before == after:
            return text
        if len(before) > 1:
            raise UnsupportedError("has layers of several widths", where=str(self.checkpoint.path))
        (width,), (left,) = before, after
        keys = [key for key in WIDTH_KEYS if config.get(key) == width]
        if len(keys) != 1:
            what = f"does not say in one place that feed-forward parts have {width} neurons"
            raise UnsupportedError(what, where=str(self.checkpoint.path / "config.json"))
        config[keys[0]] = left
        return json.dumps(whole, ensure_ascii=False, indent=2).encode()

    def _dense(self, layer: int) -> range:
        """Return the numbers of all neurons that a layer had."""
        name = next(n for n, (role, _) in self.roles.items()
                    if role == "down" and self.layers[n] == layer)  # fmt: skip
        return range(self.loaded.program.weights[name].shape[1])

    def _planned(self, name: str, users: Sequence[tuple[str, TensorSlice]]) -> PlannedTensor:
        """Return a tensor of the new folder."""
        source = self.checkpoint.tensor(name)
        weights = tuple(weight for weight, _ in users)
        held = [(self.roles[w], piece) for w, piece in users if w in self.roles]
        shape = tuple(source.shape)
        if not held:
            return PlannedTensor(name, shape, LAYOUTS[source.type], KEEP, weights, source)
        if len(held) < len(users) or any(p.swapped or p.axis for _, p in held):
            hint = "convert the model first: cortiq convert MODEL OUT --format w8"
            what = f"{name} holds matrices side by side, or the other way round"
            raise UnsupportedError(what, where=str(self.checkpoint.path), hint=hint)
        rows = 1 if len(shape) == 1 else shape[0]
        whole = raw_weight(source, (rows, shape[-1]))
        made = self._refitted(weights[0]) or _joined(whole, held, rows == 1)
        layout = made.layout
        size = made.shape[1:] if len(shape) == 1 else made.shape
        stored = dict(made.parts)
        return PlannedTensor(
            name, size, layout, KEEP, weights, OwnTensor(name, size, _type(layout.name), stored)
        )

    def _refitted(self, weight: str) -> Weight | None:
        """Return a `down` matrix of the refit, with zeros for neurons that only fill up."""
        if self.refit is None or self.roles[weight][0] != "down":
            return None
        one, layer = self.roles[weight][1], self.layers[weight]
        values = self.refit.matrix(layer)
        if values.shape[1] != int((~one.dead).sum()):
            what = f"was made with {values.shape[1]} neurons of layer {layer}, the mask has others"
            raise RequestError(what, where="refit")
        made = np.zeros((values.shape[0], one.width), F32)
        made[:, ~one.dead] = values
        return Weight.from_floats(made)


def _joined(
    whole: Weight, held: Sequence[tuple[tuple[str, Narrowing], TensorSlice]], vector: bool
) -> Weight:
    """Return what is left of a tensor's pieces, one below the other."""
    parts = []
    for (role, one), piece in sorted(held, key=lambda item: item[1].start):
        if vector and not piece.is_whole:
            raise UnsupportedError("holds biases of several matrices", where=piece.tensor)
        own = whole if piece.is_whole else whole.rows(piece.start, piece.stop or whole.shape[0])
        parts.append(gathered(own, role, one))
    if len(parts) == 1:
        return parts[0]
    arrays = {n: np.concatenate([p.parts[n] for p in parts]) for n in parts[0].parts}
    return Weight(whole.layout, (sum(p.shape[0] for p in parts), parts[0].shape[1]), arrays)


def _type(layout: str) -> str:
    return "F32" if layout == "f32" else layout
