"""Random chat templates of everything that the sandbox offers, with small and large operands.

Each renders, or ends with our error, in bounded memory and steps that are bounded each. As a
program (`python -m tests.fuzz.templates --seconds N`) it runs them in a process that may be killed,
and prints the template that did it.
"""

from __future__ import annotations

import argparse
import inspect
import json
import random
import resource
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

from jinja2.filters import FILTERS as FILTERS_OF_JINJA
from jinja2.tests import TESTS

from cortiq.errors import TokenizerError
from cortiq.tokenizer import template as page
from cortiq.tokenizer import template_costs as costs

MEBIBYTES = 256
SECONDS = 20
UNITS = 50_000
"""A small budget: what grows beyond it is refused sooner, and what escapes it stands out."""
MESSAGES = [
    {"role": "user", "content": "Hello <b>World</b>, see http://a.example/x (now)\n" * 400},
    {"role": "assistant", "content": "é\n\x00" * 2000, "tool_calls": [{"n": 10**300, "x": 1.5}]},
]
SMALL = [
    "''",
    "'a'",
    "'ab c'",
    "1",
    "0",
    "-1",
    "2.5",
    "none",
    "true",
    "[]",
    "[1, 'b']",
    "{}",
    "('a', 1)",
    "{'a': {'b': 2}}",
    "undefined_name",
    "messages",
    "messages[0]",
    "loop",
    "ns",
    "'role'",
    "'content'",
    "'%s%s'",
    "'{} {}'",
    "'a.b'",
    "namespace",
    "range(3)",
    "caller",
]
LARGE = [
    "messages[0].content",
    "messages[1].content",
    "range(100000)",
    "(range(20000) | list)",
    "'a' * 200000",
    "('()' * 20000)",
    "('<a>' * 20000)",
    "([1] * 50000)",
    "(10 ** 300)",
    "999999999",
    "-999999999",
    "('%s' * 20000)",
    "('{0}' * 20000)",
    "('a b ' * 30000)",
    "([[1, [2]]] * 9000)",
    "('f' * 3000) | int(base=16)",
    "1e308",
    "ns.t",
    "ns.s",
    "('\\t' * 50000)",
    "('a' * 100000).split('a')",
    "messages[0].items()",
    "('\\n' * 50000)",
    "(messages * 20)",
    "([messages[0].items()] * 999)",
    "('%(a)s' * 9999)",
    "f",
]
OPERATORS = ["+", "-", "*", "/", "//", "%", "**", "~", "==", "<", ">=", "in", "not in", "and", "or"]
GLOBALS = [
    "range",
    "dict",
    "namespace",
    "cycler",
    "joiner",
    "raise_exception",
    "strftime_now",
    "f",
    "loop.cycle",
    "loop.changed",
    "lipsum",
    "ns.t",
    "self.b",
]
METHODS = [(kind, name) for kind, methods in costs.METHODS.items() for name in methods]
METHODS += [(str, name) for name in ("format", "format_map", "encode", "translate", "__class__")]
OF_KIND = defaultdict(lambda: ["messages"], {
    str: [*LARGE[:2], "'a' * 99999", "'%s{}a b '"], dict: ["messages[0]", "{}"], int: ["7"],
    float: ["1e308"], list: ["messages", "[1] * 9999"], tuple: ["ns.t"], range: ["range(9)"],
})  # fmt: skip
FUNCTIONS: dict[str, object] = {**FILTERS_OF_JINJA, "tojson": json.dumps}
NAMED = [
    "width",
    "attribute",
    "base",
    "precision",
    "start",
    "fill_with",
    "d",
    "default",
    "indent",
    "wrapstring",
    "length",
    "end",
    "case_sensitive",
    "reverse",
    "separators",
    "sep",
    "old",
]
FILTERS = [*sorted(costs.FILTERS), "random", "attr"]
PARTS = """
{{% set ns = namespace(t=(1,), s='x') %}}
{{% block b %}}{{% endblock %}}
{{% macro f(a=1) %}}{{{{ varargs | length }}}}{{{{ a }}}}{{% endmacro %}}
{{% for i in range({turns}) %}}{{% set ns.t = {grow} %}}{{% set ns.s = {text} %}}{{% endfor %}}
{{% for item in {items} {condition} %}}{{{{ {first} }}}}{{% set ns.t = {second} %}}{{% endfor %}}
{{{{ {third} }}}}{{% set x %}}{{{{ {fourth} }}}}{{% endset %}}{{{{ x | length }}}}
"""


def expression(draw: random.Random, levels: int = 2) -> str:
    """One expression."""
    kind = draw.randrange(9) if levels else 0
    if kind <= 1:
        return draw.choice(SMALL if draw.random() < 0.6 else LARGE)
    inner = expression(draw, levels - 1)
    if kind <= 4:
        name = draw.choice(FILTERS)
        return f"(({inner}) | {name}{arguments(draw, levels, arity(FUNCTIONS[name], 1))})"
    if kind == 5:
        kind_of, name = draw.choice(METHODS)
        inner = draw.choice(OF_KIND[kind_of]) if draw.random() < 0.7 else inner
        most = arity(getattr(kind_of, name, None), 1)
        return f"({inner}).{name}{arguments(draw, levels, most) or '()'}"
    if kind == 6:
        test = draw.choice(sorted(name for name in costs.TESTS if name.isalpha()))
        return f"(({inner}) is {test}{arguments(draw, levels, arity(TESTS[test], 1))})"
    if kind == 7:
        call = draw.choice(GLOBALS)
        return f"{call}{arguments(draw, levels) or '()'}"
    return f"({inner}) {draw.choice(OPERATORS)} ({expression(draw, levels - 1)})"


def arity(function: object, own: int) -> int:
    """Return the number of arguments a function takes beside `own` and those that Jinja passes."""
    try:
        taken = list(inspect.signature(function).parameters)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return 2
    return max(0, len(taken) - own - hasattr(function, "jinja_pass_arg"))


def arguments(draw: random.Random, levels: int, most: int = 2) -> str:
    """Arguments in brackets, or nothing."""
    count = min(most, draw.choice([0, 1, 1, 2, 2, 3]))
    given = [expression(draw, levels - 1) for _ in range(count)]
    if draw.random() < 0.05:
        given.append(f"{draw.choice(NAMED)}={expression(draw, levels - 1)}")
    if given and draw.random() < 0.03:
        given = [f"*({given[0]})"]
    words = ["'equalto'", "'upper'", "'replace'", "'join'", "'center'", "'string'"]
    if draw.random() < 0.1:
        given.insert(0, draw.choice(words))
    return f"({', '.join(given)})" if given else ""


def template(draw: random.Random) -> str:
    """A template of some expressions, where they are printed, kept, repeated and compared."""
    four = [expression(draw, draw.choice([1, 2, 3])) for _ in range(5)]
    grow = draw.choice(["(ns.t, ns.t)", "[ns.t] * 3", "ns.t + ns.t", "[ns.t, i]", four[0]])
    return PARTS.format(
        turns=draw.choice([0, 0, 0, 0, 2, 3, 60]), grow=grow,
        text=draw.choice(["ns.s ~ ns.s", "ns.s"]),
        items=draw.choice([four[4], "[1, 2]", "messages"]),
        condition=draw.choice(["", "", f"if {four[3]}"]),
        first=four[0], second=four[1], third=four[2], fourth=four[3],
    )  # fmt: skip


def attempt(source: str) -> str:
    """The text or the error of a template; any error but ours passes through."""
    before = page.BASE_UNITS
    page.BASE_UNITS = UNITS
    try:
        return page.render(source, MESSAGES)
    except TokenizerError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        page.BASE_UNITS = before


def child(first: int) -> None:
    """Render templates from a number on, each number printed before."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + (MEBIBYTES << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    while True:
        print(first, flush=True)
        signal.alarm(SECONDS)
        if "MemoryError" in attempt(template(random.Random(first))):
            sys.exit("memory")
        first += 1


def main() -> int:
    """Run for some time; 1 where a template took too much, which is printed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--child", action="store_true")
    given = parser.parse_args()
    if given.child:
        child(given.first)
    command = [sys.executable, "-m", "tests.fuzz.templates", "--child", "--first", str(given.first)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    end, last = time.monotonic() + given.seconds, given.first
    assert running.stdout is not None
    for line in running.stdout:
        last = int(line)
        if time.monotonic() > end:
            running.kill()
            running.wait()
            print(f"{last - given.first} templates, none of which took too much")
            return 0
    print(f"number {last} ended the process with {running.wait()}:")
    print(template(random.Random(last)))
    return 1


if __name__ == "__main__":
    sys.exit(main())
