"""The size and documentation budget, checked in CI.

Files at most 300 lines (median at most 130), functions at most 60 lines (median at most 8, ninth
decile at most 25), a docstring on every public name, every argument annotated, at most 9 tokens a
line on average. `LIMITS` bounds the lines of code of every package, tests, C and WGSL included
(blank lines, comments of C and WGSL, and docstrings aside: nobody should save on those).

Model families are counted by themselves, at most 220 lines of code each: their number grows with
the models there are, so a limit on all of them would be a limit on the catalogue. What must stay
small is one family, and the core that they share.
"""

from __future__ import annotations

import ast
import io
import re
import statistics
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

PACKAGES = ("cortiq", "backends", "conformance", "plugins", "tools")
SKIPPED = {"tests", ".venv", "build", "dist"}
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
MAX_FILE, MAX_FILE_MEDIAN, MAX_FUNCTION = 300, 130, 60
MAX_FUNCTION_MEDIAN, MAX_FUNCTION_DECILE = 8, 25
MAX_TOKENS_PER_LINE, MAX_FAMILY = 9.0, 220
REGISTRIES = ("cortiq/models/registry.py", "cortiq/vision/load.py")
LIMITS: Mapping[str, int] = {
    "backends/cpu": 12330,
    "backends/mlx": 1760,
    "backends/reference": 1020,
    "backends/triton": 13600,
    "backends/wgpu": 6000,
    "benchmarks": 5230,
    "conformance": 8840,
    "cortiq": 800,
    "cortiq/backend": 5960,
    "cortiq/bench": 540,
    "cortiq/cli": 3260,
    "cortiq/convert": 1920,
    "cortiq/dialects": 1050,
    "cortiq/domains": 270,
    "cortiq/engine": 4290,
    "cortiq/explain": 640,
    "cortiq/formats": 8080,
    "cortiq/hearing": 2480,
    "cortiq/ir": 5010,
    "cortiq/model": 3210,
    "cortiq/models": 6380,
    "cortiq/numerics": 3880,
    "cortiq/placement": 710,
    "cortiq/plugins": 660,
    "cortiq/ranks": 2830,
    "cortiq/receipts": 1060,
    "cortiq/serve": 6490,
    "cortiq/tokenizer": 3180,
    "cortiq/vision": 2380,
    "plugins/cortiq-bounded": 1480,
    "plugins/cortiq-faulty": 60,
    "plugins/cortiq-masks": 1450,
    "plugins/cortiq-null": 210,
    "plugins/cortiq-producers": 420,
    "plugins/cortiq-skills": 1710,
    "plugins/cortiq-torch": 190,
    "tests": 69130,
    "tools": 2121,
}
"""Lines of code of each package: a tenth above what it had when the limits were set."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


def sources(root: Path) -> Iterator[Path]:
    """Python files under the budget."""
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            if not SKIPPED.intersection(path.parts):
                yield path


def functions(tree: ast.AST) -> list[Function]:
    """Every function of a module, nested ones included."""
    return [n for n in ast.walk(tree) if isinstance(n, Function)]


def length(node: Function) -> int:
    """Lines of a function, its decorators aside."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


def missing_annotations(path: Path, tree: ast.AST) -> Iterator[str]:
    """Arguments without a type."""
    for node in functions(tree):
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        for argument in arguments:
            if argument.annotation is None and argument.arg.strip("_") not in ("self", "cls"):
                yield f"{path}:{node.lineno}: {node.name}({argument.arg}) has no type"


def missing_docstrings(path: Path, tree: ast.Module) -> Iterator[str]:
    """Public names without a docstring."""
    if not ast.get_docstring(tree):
        yield f"{path}: the module has no docstring"
    classes = (n for n in tree.body if isinstance(n, ast.ClassDef))
    holders = [tree, *(n for n in classes if not n.name.startswith("_"))]
    for holder in holders:
        for node in holder.body:
            documented = isinstance(node, Function | ast.ClassDef)
            if documented and not node.name.startswith("_") and not ast.get_docstring(node):
                yield f"{path}:{node.lineno}: {node.name} has no docstring"


def tokens_of(source: str) -> int:
    """Tokens of code, comments and strings' insides aside."""
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    stream = tokenize.generate_tokens(io.StringIO(source).readline)
    return sum(token.type not in skipped for token in stream)


def code_lines(source: str, tree: ast.Module) -> int:
    """Lines that are neither blank nor part of a docstring or other bare string."""
    strings = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str)
    ]
    documented = sum((n.end_lineno or n.lineno) - n.lineno + 1 for n in strings)
    blank = sum(not line.strip() for line in source.splitlines())
    inside = sum(not line.strip() for n in strings for line in n.value.value.splitlines())
    return source.count("\n") - documented - (blank - inside)


def family_files(root: Path) -> set[Path]:
    """The modules that the registries of text models and of towers list in `OWN`."""
    return {
        (root / registry).parent / f"{name}.py"
        for registry in REGISTRIES
        for name in listed_names(root / registry)
    }


def listed_names(registry: Path) -> tuple[str, ...]:
    """The names that a module lists in `OWN`."""
    for node in ast.parse(registry.read_text()).body:
        assigned = isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if assigned and target is not None and ast.unparse(target) == "OWN":
            return ast.literal_eval(node.value)
    raise ValueError(f"{registry} lists no families")


def package_of(name: Path) -> str:
    """Return the key of `LIMITS` that a file's lines count for."""
    if name.parts[0] in ("tests", "tools", "benchmarks", "conformance"):
        return name.parts[0]
    return "/".join(name.parts[:2]) if len(name.parts) > 2 else name.parts[0]


def package_lines(root: Path) -> Counter[str]:
    """Count the lines of code of every package, C and WGSL included, model families aside."""
    families, found = family_files(root), Counter[str]()
    for folder in (*PACKAGES, "tests", "benchmarks"):
        for path in sorted((root / folder).rglob("*")):
            if path in families or {".venv", "build", "dist"}.intersection(path.parts):
                continue
            if path.suffix == ".py":
                source = path.read_text()
                found[package_of(path.relative_to(root))] += code_lines(source, ast.parse(source))
            elif path.suffix in (".c", ".h", ".wgsl", ".cu", ".cuh", ".cpp"):
                text = COMMENT.sub("", path.read_text())
                lines = sum(bool(line.strip()) for line in text.splitlines())
                found[package_of(path.relative_to(root))] += lines
    return found


def over_limit(root: Path) -> Iterator[str]:
    """Yield packages that have more lines of code than their limit, or no limit."""
    for package, lines in sorted(package_lines(root).items()):
        limit = LIMITS.get(package)
        print(f"{package}: {lines} lines of code (at most {limit})")
        if limit is None or lines > limit:
            yield f"{package} has {lines} lines of code, at most {limit}"


def check(root: Path) -> list[str]:
    """Return every breach of the budget, as a line."""
    problems, file_lengths, function_lengths, tokens = [*over_limit(root)], [], [], 0
    families = family_files(root)
    for path in sources(root):
        source = path.read_text()
        lines = source.count("\n")
        tree, name = ast.parse(source), path.relative_to(root)
        file_lengths.append(lines)
        tokens += tokens_of(source)
        if path in families and code_lines(source, tree) > MAX_FAMILY:
            problems.append(f"{name}: {code_lines(source, tree)} lines of code")
        if lines > MAX_FILE:
            problems.append(f"{name}: {lines} lines, at most {MAX_FILE}")
        for node in functions(tree):
            function_lengths.append(length(node))
            if length(node) > MAX_FUNCTION:
                problems.append(f"{name}:{node.lineno}: {node.name} has {length(node)} lines")
        problems += [*missing_docstrings(name, tree), *missing_annotations(name, tree)]
    decile = statistics.quantiles(function_lengths, n=10)[-1]
    figures = {
        "median file": (statistics.median(file_lengths), MAX_FILE_MEDIAN),
        "median function": (statistics.median(function_lengths), MAX_FUNCTION_MEDIAN),
        "ninth decile of functions": (decile, MAX_FUNCTION_DECILE),
        "tokens a line": (tokens / sum(file_lengths), MAX_TOKENS_PER_LINE),
    }
    for figure, (value, limit) in figures.items():
        print(f"{figure}: {value:.6g} (at most {limit:g})")
        if value > limit:
            problems.append(f"{figure} is {value:.6g}, at most {limit:g}")
    return problems


def main() -> int:
    """Print the figures and every breach; exit 1 if there is one."""
    problems = check(Path(__file__).parent.parent)
    print(*problems, sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
