"""Keys and values of sinks from rows of a text: where training of them may begin."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cortiq.backend import Batch, CompileOptions, Named, Row
from cortiq.errors import RequestError, UnsupportedError
from cortiq.ir import Node, Program, ops, primitives_of
from cortiq.ir.encoded import encoded_rows
from cortiq_bounded.rewriting import attention_nodes, layer_prefix


def sink_tensors(
    executable: Any, program: Program, ids: Sequence[int], layers: str = "all"
) -> dict[str, np.ndarray]:
    """Return tensors for `swa_sink_v1`: the first rows' keys before rotation, and their values.

    Parameters
    ----------
    ids : tokens whose rows become sinks, one each.
    """
    nodes = attention_nodes(program, layers)
    names = {node.name: _names(program, node) for node in nodes}
    wants = tuple(Named(name) for pair in names.values() for name in pair)
    state = executable.open(len(ids))
    rows = [Row(state, at, token, wants) for at, token in enumerate(ids)]
    result = executable.forward(Batch(rows)).result()
    state.release()
    if len(result.rows) != len(rows):
        raise RequestError("the model does not compute these tokens", where="sinks")
    made = {}
    for node in nodes:
        keys, values = (
            np.stack([row[Named(name)] for row in result.rows], axis=1) for name in names[node.name]
        )
        prefix = layer_prefix(node)
        made[f"{prefix}.sink_keys"] = np.ascontiguousarray(keys)
        made[f"{prefix}.sink_values"] = np.ascontiguousarray(values.transpose(0, 2, 1))
    return made


def _names(program: Program, node: Node) -> tuple[str, str]:
    """Name a layer's keys before their rotation, and its values, as f32[kv_heads, dim]."""
    inputs = {
        inner.name.removeprefix(f"{node.name}."): inner
        for inner in primitives_of(program).trunk.nodes
        if inner.name.startswith(f"{node.name}.")
    }
    turned = inputs.get("k.rope")
    keys = turned if turned and isinstance(turned.op, ops.Rope) else inputs["k.quantised"]
    return keys.inputs[0], inputs["v.quantised"].inputs[0]


def write_sinks(model: str, text: str, count: int, layers: str, out: Path) -> int:
    """Write sinks of a model's first rows of a text to a safetensors file; return their number.

    The reference computes them, from primitives: other backends keep nothing inside a layer.
    """
    from cortiq.formats.safetensors_writer import write_safetensors
    from cortiq.model.source import open_source
    from cortiq.options import LoadOptions
    from cortiq_reference.backend import ReferenceBackend

    source = open_source(model, LoadOptions())
    try:
        ids = source.tokenizer.encode(text)[:count]
        if len(ids) < count:
            what = f"the text has {len(ids)} tokens for {count} sinks"
            raise RequestError(what, where="text", hint="give a longer one")
        if encoded_rows(source.program) is not None:
            what = "rows of a model that hears are nothing without a sound"
            raise UnsupportedError(what, where=model)
        primitives = primitives_of(source.program)
        executable = ReferenceBackend().compile(primitives, source.weights, CompileOptions())
        write_safetensors(out, sink_tensors(executable, source.program, ids, layers), {})
        executable.close()
    finally:
        source.close()
    return len(ids)
