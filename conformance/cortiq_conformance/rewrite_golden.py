"""`python -m cortiq_conformance.rewrite_golden`: golden digests, from the definitions.

An existing digest changes only with the contract's version.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cortiq.errors import RequestError
from cortiq.numerics.contract import CONTRACT_VERSION
from cortiq_conformance import golden
from cortiq_conformance.case import Case, NotRunError
from cortiq_conformance.case_data import CaseData
from cortiq_conformance.catalogue import LEVELS, cases
from cortiq_conformance.compare import digest_of


def rewrite(levels: Iterable[int] = LEVELS) -> str:
    """Write the digests of every case of these levels; return a summary sentence.

    Raises
    ------
    RequestError : a digest differs from the file's, which has this contract version.
    """
    sentences = [_level(level) for level in levels]
    return "\n".join(sentences)


def _level(level: int) -> str:
    known = golden.read(level)
    same_version = known["contract"] == CONTRACT_VERSION
    entries: dict[str, Any] = {}
    changed, added = [], 0
    for case in cases([level], "full"):
        old = known["cases"].get(case.id) if same_version else None
        new = _entry(case)
        if new is None:
            if old is not None:
                entries[case.id] = old
            continue
        entries[case.id] = new
        added += old is None
        if old is not None and old != new:
            changed.append(case.id)
    if changed:
        raise RequestError(
            f"{len(changed)} digests of level {level} differ, first {changed[0]!r}",
            hint="bits change with CONTRACT_VERSION only; a changed case needs a new id",
        )
    golden.write(level, entries)
    return f"level {level}: {len(entries)} cases, {added} new"


def _entry(case: Case) -> dict[str, Any] | None:
    """Return a case's entry; None if it cannot be computed here."""
    try:
        check = case.build(CaseData(case.id))
    except NotRunError:
        return None
    expected = check.expected()
    carried = getattr(check, "golden_facts", None)
    return {"digest": digest_of(expected), **(carried(expected) if carried else {})}


if __name__ == "__main__":
    print(rewrite())
