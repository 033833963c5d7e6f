"""Rows that towers and encoders of a model make of an image or a sound, in float64."""

from __future__ import annotations

import numpy as np

from cortiq.hearing.encode import neighbours, with_zeros
from cortiq.hearing.grid import BANDS, CELLS, convolved
from cortiq.hearing.whisper import FRAME, FRAMES, STRIDE
from cortiq.ir.encoders import PROJECTOR, ROWS, SHARES, SQUARE, STAGE, square_of
from cortiq.vision.passes import gathered
from cortiq.vision.tower import HIDDEN, NEWLINE
from cortiq_reference.ideal import evaluate


def ideal_rows(vision, image):
    """The rows of an image in float64, with those of layers beside them."""
    program, rows = vision.program, []
    graph, names = program.graphs[PROJECTOR], program.trunk.outputs
    for tile in image.tiles:
        count = len(tile.patches)
        inputs = {"patch": tile.patches, "last": np.full(count, count - 1), **tile.inputs}
        zeros, slots = [0] * count, {}
        hidden = evaluate(program, vision.weights, zeros, names, inputs=inputs, stored=slots)
        for n, stage in enumerate(tile.stages):
            count, entry = len(stage.squares), STAGE.format(n)
            below = gathered([*hidden.values()], stage.squares, stage.parts)
            types, names = program.graphs[entry].values, program.graphs[entry].outputs
            given = {
                square_of(i): part.reshape(count, *types[square_of(i)].shape)
                for i, part in enumerate(below)
            }
            given |= {"last": np.full(count, count - 1), **stage.inputs}
            given["shares"] = np.full(stage.squares.shape, 1 / stage.squares.shape[1])
            hidden = evaluate(program, vision.weights, [0] * count, names, entry, given)
        squares = gathered([*hidden.values()], tile.squares, tile.parts)
        given = {
            square_of(n): part.reshape(len(part), *graph.values[square_of(n)].shape)
            for n, part in enumerate(squares)
            if square_of(n) in graph.inputs
        }
        kept = tile.squares.shape
        given |= {"shares": np.full(kept, 1 / kept[1])} if "shares" in graph.inputs else {}
        given, zeros = {**given, **tile.supplied}, [0] * kept[0]
        made = evaluate(
            program, vision.weights, zeros, graph.outputs, PROJECTOR, given, stored=slots
        )
        rows.append(np.concatenate([made[name] for name in graph.outputs], axis=1))
    if NEWLINE in program.graphs:
        count = int(image.order.max()) + 1 - sum(map(len, rows)) if image.order is not None else 1
        ends = [0] * max(count, 1)
        numbers = {"place": np.arange(len(ends))} if len(ends) > 1 else {}
        rows.append(evaluate(program, vision.weights, ends, [NEWLINE], NEWLINE, numbers)[NEWLINE])
    made = np.concatenate(rows)
    return made if image.order is None else made[image.order]


def sound_rows(loaded, sound, given):
    """The rows of a sound in float64, of transformers' features."""
    program, weights, rows = loaded.program, loaded.weights, []
    by_band = BANDS in program.trunk.inputs

    def entry(name, given, value=CELLS):
        (output,) = program.graphs[name].outputs
        return evaluate(program, weights, [0] * len(given), [output], name, {value: given})[output]

    for window, frames in zip(sound.windows, given, strict=True):
        frames = frames if window.frames.ndim == 3 else frames.T
        assert np.abs(window.frames - frames).max() < 1e-3  # theirs are float32
        if window.frames.ndim == 3:
            near = convolved(frames, program, entry)
        else:
            made = entry(FRAMES, neighbours(frames, 1), FRAME)
            near = neighbours(made, STRIDE)
        near = window.taken(near)
        inputs = {BANDS if by_band else FRAME: near, **window.inputs}
        if "last" in program.trunk.inputs:
            inputs["last"] = np.full(window.count, window.count - 1)
        hidden = evaluate(program, weights, [0] * len(near), [HIDDEN], inputs=inputs)[HIDDEN]
        graph, squares = program.graphs[PROJECTOR], with_zeros(hidden)[window.squares]
        taken = {SQUARE: squares.reshape(len(squares), *graph.values[SQUARE].shape)}
        if SHARES in graph.inputs:
            taken[SHARES] = np.full(squares.shape[:2], 1 / squares.shape[1])
        taken |= window.supplied
        rows.append(evaluate(program, weights, [0] * len(squares), [ROWS], PROJECTOR, taken)[ROWS])
    return np.concatenate(rows)
