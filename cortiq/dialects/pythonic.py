"""LFM2: a list of Python calls with literal keyword arguments, `[f(a=1), g(b="x")]`."""

from __future__ import annotations

import ast
import json

from cortiq.dialects.dialect import ToolCall, ToolDialect, Tools, Unfinished
from cortiq.dialects.json_text import object_reader, read_json

OPENS, CLOSES = "<|tool_call_start|>", "<|tool_call_end|>"


def read(text: str, tools: Tools, final: bool) -> tuple[list[ToolCall], int]:
    """Read calls (`dialect.CallReader`); only literals are read, nothing is run."""
    if text.removeprefix(OPENS).lstrip().startswith(("[{", "{")):
        return _OBJECTS(text, tools, final)
    body = text.removeprefix(OPENS).strip()
    return parse(body.removesuffix(CLOSES)), len(text)


def parse(text: str) -> list[ToolCall]:
    """Return all calls of a list."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, RecursionError, MemoryError):
        raise Unfinished("no Python expression") from None
    nodes = tree.elts if isinstance(tree, ast.List) else [tree]
    return [_call(node) for node in nodes]


class _JsonWords(ast.NodeTransformer):
    """Takes JSON's words for Python's."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        words = {"true": True, "false": False, "null": None}
        return ast.Constant(words[node.id]) if node.id in words else node


def _call(node: ast.expr) -> ToolCall:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("no call with named arguments")
    values = {keyword.arg: _JsonWords().visit(keyword.value) for keyword in node.keywords}
    if None in values or len(values) != len(node.keywords):
        raise ValueError("unpacked or repeated arguments")
    given = {name: ast.literal_eval(value) for name, value in values.items()}
    try:
        return ToolCall(ast.unparse(node.func), read_json(json.dumps(given, allow_nan=False)))
    except TypeError:
        raise ValueError("a value that JSON has not") from None


_OBJECTS = object_reader(OPENS, CLOSES)

DIALECT = ToolDialect("pythonic", lambda template: OPENS in template, OPENS, CLOSES, read=read)
