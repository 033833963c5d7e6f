"""`conformance.toml`: cases that are known to fail, each with its reason; strict.

::

    [[expect_different]]
    case = "level0/Rope[half, 64 of 64]"
    reason = "the driver contracts float products: bug 1234"
    until = "contract 2"

    [[expect_declined]]
    case = "level0/MatMul[Q3_K, 11 blocks]"
    reason = "Q3_K is not repacked yet"

A case is named by its whole id. One that is the same after all fails until its lines are removed.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cortiq.errors import FormatError
from cortiq.numerics.contract import CONTRACT_VERSION
from cortiq_conformance.catalogue import cases
from cortiq_conformance.report import CaseOutcome, CaseResult

FILE = "conformance.toml"
TABLES = {"expect_different": CaseOutcome.DIFFERENT, "expect_declined": CaseOutcome.DECLINED}
KEYS = {"case", "reason", "until"}


@dataclass(frozen=True)
class Expectation:
    """The known outcome of a case, and the reason."""

    outcome: CaseOutcome
    reason: str


Expectations = Mapping[str, Expectation]


def read(path: str | Path) -> Expectations:
    """Read the expectations of a file, by case id.

    Raises
    ------
    FormatError : what is wrong with the file, and in which entry: a case that this kit has not or
        that is named twice, an entry without a reason, one whose time has come.
    """
    try:
        tables = tomllib.loads(Path(path).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise FormatError(f"cannot be read: {error}", where=str(path)) from None
    known = {case.id for case in cases(profile="full")}
    found: dict[str, Expectation] = {}
    for case, expectation in _entries(tables, str(path)):
        if case not in known:
            near = difflib.get_close_matches(case, known, 1)
            hint = f"Did you mean {near[0]!r}?" if near else "cortiq conform --list shows all"
            raise FormatError(f"names no case of this kit: {case!r}", where=str(path), hint=hint)
        if case in found:
            raise FormatError(f"names a case twice: {case!r}", where=str(path))
        found[case] = expectation
    return found


def _entries(tables: Mapping[str, Any], path: str) -> Iterator[tuple[str, Expectation]]:
    unknown = sorted(set(tables) - set(TABLES))
    if unknown:
        message = f"has an unknown table {unknown[0]!r}"
        raise FormatError(message, where=path, hint=f"There are {', '.join(TABLES)}")
    for table, outcome in TABLES.items():
        for number, entry in enumerate(_list_of_tables(tables, table, path)):
            where = f"{path}, {table} {number + 1}"
            _check(entry, where)
            yield entry["case"], Expectation(outcome, entry["reason"].strip())


def _list_of_tables(tables: Mapping[str, Any], table: str, path: str) -> list[dict[str, Any]]:
    found = tables.get(table, [])
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise FormatError(f"is written [[{table}]]", where=path)
    return found


def _check(entry: Mapping[str, Any], where: str) -> None:
    unknown = sorted(set(entry) - KEYS)
    if unknown:
        raise FormatError(f"has an unknown key {unknown[0]!r}", where=where)
    for key in ("case", "reason"):
        if not isinstance(entry.get(key), str) or not entry[key].strip():
            raise FormatError(f"has no {key}", where=where)
    if "until" in entry:
        _check_until(entry["until"], where)


def _check_until(until: Any, where: str) -> None:
    words = until.split() if isinstance(until, str) else []
    if len(words) != 2 or words[0] != "contract" or not words[1].isdecimal():
        raise FormatError(f"until = {until!r}", where=where, hint='write until = "contract 2"')
    if int(words[1]) <= CONTRACT_VERSION:
        message = f"expired with contract {words[1]}, and this is contract {CONTRACT_VERSION}"
        raise FormatError(message, where=where, hint="Remove the entry and run the case.")


def apply_expectation(result: CaseResult, expectations: Expectations) -> CaseResult:
    """Excuse a result that fails as expected; turn an unexpected pass into an error."""
    expected = expectations.get(result.case.id)
    if expected is None or result.outcome is CaseOutcome.NOT_RUN:
        return result
    if result.outcome is expected.outcome:
        return replace(result, excused=expected.reason)
    if result.outcome is CaseOutcome.SAME:
        reason = f"is the same, but {FILE} expects it {expected.outcome.value}: remove its entry"
        return replace(result, outcome=CaseOutcome.ERROR, reason=reason)
    reason = f"{result.reason} ({FILE} expects it {expected.outcome.value})"
    return replace(result, reason=reason)
