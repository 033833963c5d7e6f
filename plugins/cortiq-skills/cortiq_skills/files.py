"""Files of skills, `NAME.skill`: one safetensors file with a record among its metadata.

Tensors are `KIND:WEIGHT`, float32, where a kind is `replace`, `delta`, `a` or `b`; `phi.mean`,
`phi.basis` and `phi.holdout` are float16, IEEE's rounding to nearest.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from cortiq.errors import FormatError, RequestError, shown
from cortiq.formats.safetensors import SafetensorsHeader, read_header
from cortiq.formats.safetensors_writer import write_safetensors
from cortiq.formats.strict_json import parse_object
from cortiq.numerics.contract import F32, Floats
from cortiq_skills.record import KINDS, SkillRecord, SkillSelection, TaskSkill

SUFFIX = ".skill"
VERSION = "1"
_KEY = "cortiq.skill"
_TYPES = {"F32": "<f4", "F16": "<f2"}
_PHI = ("phi.mean", "phi.basis", "phi.holdout")


def write_skill(path: Path, skill: TaskSkill) -> None:
    """Write a skill; the same skill gives the same bytes."""
    arrays = {f"{kind}:{name}": a.astype(F32) for (kind, name), a in skill.tensors.items()}
    said: dict[str, Any] = asdict(skill.record)
    chosen = skill.selection
    if chosen is not None:
        vectors = (chosen.mean, chosen.basis, chosen.holdout)
        arrays |= {n: v.astype(np.float16) for n, v in zip(_PHI, vectors, strict=True)}
        said["selection"] = {"metric": chosen.metric, "layer": chosen.layer,
                             "err_mean": chosen.err_mean, "err_std": chosen.err_std}  # fmt: skip
    text = json.dumps(said, sort_keys=True, separators=(",", ":"), allow_nan=False)
    write_safetensors(path, arrays, {_KEY: VERSION, "record": text})


def read_skill(path: Path) -> TaskSkill:
    """Read a skill.

    Raises
    ------
    FormatError : it is none, or a number of it is not finite.
    """
    header, where = read_header(path), str(path)
    if header.metadata.get(_KEY) != VERSION:
        what = f"is no skill of version {VERSION}: {_KEY} is {shown(header.metadata.get(_KEY))}"
        raise FormatError(what, where=where)
    said = parse_object(header.metadata.get("record", "").encode(), f"{where}, record")
    tensors: dict[tuple[str, str], Floats] = {}
    vectors: dict[str, Floats] = {}
    for name, tensor in header.tensors.items():
        kind, colon, weight = name.partition(":")
        if name in _PHI and tensor.type == "F16":
            vectors[name] = _floats(header, name)
        elif kind in KINDS and colon and tensor.type == "F32" and len(tensor.shape) == 2:
            tensors[kind, weight] = _floats(header, name)
        else:
            raise FormatError(f"holds {shown(name)}, which no skill has", where=where)
    chosen = said.pop("selection", None)
    try:
        record = SkillRecord(**said)
        selection = None if chosen is None else SkillSelection(
            **chosen, mean=vectors["phi.mean"], basis=vectors["phi.basis"],
            holdout=vectors["phi.holdout"],
        )  # fmt: skip
    except (TypeError, KeyError, RequestError) as error:
        raise FormatError(f"has a record that is none: {error}", where=where) from error
    return TaskSkill(record, tensors, selection)


def _floats(header: SafetensorsHeader, name: str) -> Floats:
    tensor, kind = header.tensors[name], _TYPES[header.tensors[name].type]
    count = tensor.nbytes // np.dtype(kind).itemsize
    values = np.frombuffer(header.buffer, kind, count, tensor.offset).astype(F32)
    if not np.isfinite(values).all():
        raise FormatError(f"{name} holds a number that is not finite", where=str(header.path))
    return values.reshape(tensor.shape)
