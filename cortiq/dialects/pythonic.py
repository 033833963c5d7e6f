"""LFM2: a list of Python calls with literal keyword arguments, `[f(a=1), g(b="x")]`."""

from __future__ import annotations

import ast

from cortiq.dialects.dialect import ToolCall, ToolDialect, from_json

OPENS, CLOSES = "<|tool_call_start|>", "<|tool_call_end|>"


def parse(text: str) -> list[ToolCall]:
    """All calls of a list; only literals are read, nothing is run."""
    if text.lstrip().startswith(("[{", "{")):
        return from_json(text)
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError("no Python expression") from None
    nodes = tree.elts if isinstance(tree, ast.List) else [tree]
    if not nodes:
        raise ValueError("an empty list")
    return [_call(node) for node in nodes]


def _call(node: ast.expr) -> ToolCall:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("no call with named arguments")
    given = {keyword.arg: ast.literal_eval(keyword.value) for keyword in node.keywords}
    if None in given:
        raise ValueError("unpacked arguments")
    return ToolCall(ast.unparse(node.func), {str(name): value for name, value in given.items()})


DIALECT = ToolDialect("pythonic", lambda template: OPENS in template, OPENS, CLOSES, parse)
