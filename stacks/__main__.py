"""`python -m stacks`: run the kernels of the contract in every stack here and compare bits.

Exit status 1 if one bit differs, a kernel fails, or nothing ran at all.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from stacks.base import Array, Case, NotHereError, Outcome, Stack, bits, compare
from stacks.vectors import cases

STACKS = ("numba", "triton", "wgsl", "mlx")


def open_stacks(name: str) -> list[Stack]:
    """The devices of one stack; raises `NotHereError` with the reason if it cannot run here."""
    return importlib.import_module(f"stacks.{name}_kernels").stacks()


def first_difference(expected: tuple[Array, ...], actual: tuple[Array, ...]) -> str:
    """Where two results part, and both bit patterns there."""
    for output, (want, got) in enumerate(zip(expected, actual, strict=False)):
        if want.dtype != got.dtype or want.shape != got.shape:
            return f"output {output}: {got.dtype}{got.shape} instead of {want.dtype}{want.shape}"
        different = np.argwhere(bits(want) != bits(got))
        if len(different):
            at = tuple(different[0])
            pair = f"{bits(want)[at]:#x} expected, {bits(got)[at]:#x} computed"
            return f"output {output} at {tuple(map(int, at))}: {pair}"
    return "another number of outputs"


def run_case(stack: Stack, case: Case) -> dict[str, Any]:
    """One line of the report."""
    line = {"stack": stack.name, "device": stack.device, "kernel": case.kernel, "case": case.label}
    if case.kernel not in stack.kernels:
        return line | {"not_run": "this stack has no such kernel yet"}
    start = time.perf_counter()
    try:
        actual = stack.run(case)
    except Exception:  # a driver or compiler may raise anything; the report names it
        return line | {"error": traceback.format_exc(limit=-3)}
    outcome = compare(case.expected, actual)
    line |= asdict(outcome) | {"seconds": round(time.perf_counter() - start, 3)}
    if outcome.differing:
        line["first"] = first_difference(case.expected, actual)
    return line


def run(names: list[str], some: list[Case]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Run cases in the named stacks: the report's lines, and the reason of each absent stack."""
    lines, absent = [], {}
    for name in names:
        try:
            opened = open_stacks(name)
        except NotHereError as reason:
            absent[name] = str(reason)
            continue
        except Exception as failure:  # a driver that is there and does not start
            absent[name] = f"it does not start: {failure!r}"
            continue
        lines += [run_case(stack, case) for stack in opened for case in some]
    return lines, absent


def cell(lines: list[dict[str, Any]]) -> str:
    """What the table says of one kernel on one device."""
    if any("error" in line for line in lines):
        return "error"
    if any("not_run" in line for line in lines):
        return "not run"
    return str(sum(line["differing"] for line in lines))


def table(lines: list[dict[str, Any]], some: list[Case]) -> str:
    """Kernels down, devices across; a cell is the number of differing values."""
    devices = list(dict.fromkeys((line["stack"], line["device"]) for line in lines))
    rows = [["kernel", "values", "live", *(f"{name}: {device}" for name, device in devices)]]
    for kernel in dict.fromkeys(case.kernel for case in some):
        sizes = [compare(c.expected, c.expected) for c in some if c.kernel == kernel]
        row = [kernel, str(sum(s.values for s in sizes)), str(sum(s.live for s in sizes))]
        for device in devices:
            row.append(
                cell(
                    [
                        x
                        for x in lines
                        if x["kernel"] == kernel and device == (x["stack"], x["device"])
                    ]
                )
            )
        rows.append(row)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line, run, print the table; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m stacks", description=__doc__)
    parser.add_argument("--only", default=",".join(STACKS), help="stacks, separated by commas")
    parser.add_argument("--kernels", help="kernels, separated by commas (all)")
    parser.add_argument("--size", type=int, default=1, help="multiplies the number of values")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write every case's outcome to this file")
    options = parser.parse_args(arguments)
    some = cases(options.size, options.seed)
    if options.kernels:
        some = [case for case in some if case.kernel in options.kernels.split(",")]
    lines, absent = run(options.only.split(","), some)
    print(table(lines, some))
    for line in lines:
        if line.get("differing") or "error" in line:
            print(
                f"{line['stack']} {line['kernel']} ({line['case']}):",
                line.get("error") or line["first"],
            )
    for name, reason in absent.items():
        print(f"{name}: not run: {reason}")
    if options.json:
        options.json.write_text(json.dumps({"lines": lines, "not_run": absent}, indent=1))
    return int(not lines or any(line.get("differing", 0) or "error" in line for line in lines))


__all__ = ["Outcome", "main"]
if __name__ == "__main__":
    sys.exit(main())
