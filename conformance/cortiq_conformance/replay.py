"""Replay files: a difference with its arrays; the case's data follow from its id."""

from __future__ import annotations

import json
import re
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cortiq.errors import CortiqError, FormatError, RequestError
from cortiq.numerics.contract import CONTRACT_VERSION
from cortiq_conformance import KIT_VERSION
from cortiq_conformance.case import Case
from cortiq_conformance.case_data import CaseData
from cortiq_conformance.catalogue import cases
from cortiq_conformance.compare import Divergence, digest_of
from cortiq_conformance.outputs import Observations
from cortiq_conformance.report import CaseResult
from cortiq_conformance.runner import make_subject, run_case
from cortiq_conformance.subject import Subject

NEEDED = {"case", "backend", "device", "kit", "expected_digest"}
"""Facts without which a case cannot be run again."""


@dataclass(frozen=True)
class ReplayFile:
    """Contents of a replay file.

    Attributes
    ----------
    facts : the case's id, the backend and its plugin file, the divergence.
    inputs : the backend's inputs: `tokens` and extra inputs by name (after `sequence N: `
        where there are several), and weights where they are small:
        `weight NAME` as floats, or the parts of its codes.
    expected, got : values by name, a row for each row of the input.
    """

    facts: dict[str, Any]
    inputs: Observations
    expected: Observations
    got: Observations


def save(
    folder: Path,
    case: Case,
    subject: Subject,
    found: Divergence,
    arrays: Mapping[str, Observations],
) -> Path:
    """Write a replay file of the arrays `inputs`, `expected` and `got`, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (re.sub(r"[^A-Za-z0-9]+", "-", case.id).strip("-") + ".npz")
    facts = {
        "case": case.id,
        "backend": subject.name,
        "device": subject.device,
        "plugin": subject.plugin,
        "kit": KIT_VERSION,
        "contract": CONTRACT_VERSION,
        "expected_digest": digest_of(arrays["expected"]),
        "divergence": found.as_dict(),
    }
    named = {f"{kind}/{n}": a for kind, part in arrays.items() for n, a in part.items()}
    np.savez_compressed(path, facts=np.array(json.dumps(facts)), **named)  # type: ignore[arg-type]
    return path


def load(path: str | Path) -> ReplayFile:
    """Read a replay file; `FormatError` for any other file."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            facts = _facts(str(stored["facts"]))
            parts: dict[str, Observations] = {"inputs": {}, "expected": {}, "got": {}}
            for key in stored.files:
                kind, _, name = key.partition("/")
                if kind in parts:
                    parts[kind][name] = stored[key]
    except OSError as error:
        raise FormatError(error.strerror or "cannot be read", where=str(path)) from None
    except (ValueError, KeyError, EOFError, TypeError, zlib.error, zipfile.BadZipFile):
        # NumPy's own words are about its parameters: nothing that would help here.
        hint = "`cortiq conform --out DIRECTORY` writes them"
        raise FormatError("is no replay file, or damaged", where=str(path), hint=hint) from None
    return ReplayFile(facts, **parts)


def _facts(text: str) -> dict[str, Any]:
    """Read the facts of a replay file; ValueError if one that a replay needs is missing."""
    facts = json.loads(text)
    if not isinstance(facts, dict) or not facts.keys() >= NEEDED:
        raise ValueError("facts are missing")
    return facts


def replay(path: str | Path, backend: Any = None, out: str | Path | None = None) -> CaseResult:
    """Run the case of a replay file again, against the definitions.

    Raises
    ------
    RequestError : this kit has no such case, or builds other data for it.
    """
    stored = load(path)
    name, device = stored.facts["backend"], stored.facts["device"]
    chosen = backend or (f"{name}:{device}" if device else name)
    subject, case = _subject(chosen, path, stored), find(stored.facts["case"])
    expected = case.build(CaseData(case.id)).expected()
    if digest_of(expected) != stored.facts["expected_digest"]:
        message = f"this kit ({KIT_VERSION}) expects other bits of {case.id!r}"
        raise RequestError(message, where=str(path), hint=f"it is of kit {stored.facts['kit']}")
    return run_case(case, subject, use_golden=False, out=out)


def _subject(chosen: Any, path: str | Path, stored: ReplayFile) -> Subject:
    """Return the backend to replay on; if it is missing, the error names its plugin file."""
    try:
        return make_subject(chosen)
    except CortiqError as error:
        plugin = stored.facts.get("plugin")
        if plugin is None:
            raise
        hint = f"cortiq --plugin {plugin} replay {path}"
        raise RequestError(error.what, where=str(path), hint=hint) from None


def find(case_id: str) -> Case:
    """Find the case with this id, of any level and profile."""
    for case in cases(profile="full"):
        if case.id == case_id:
            return case
    raise RequestError(f"this kit has no case {case_id!r}", hint=f"it is kit {KIT_VERSION}")
