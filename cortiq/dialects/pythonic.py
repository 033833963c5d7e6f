"""LFM2 and OLMo 3: Python calls with literal keyword arguments, in a list or on lines."""

from __future__ import annotations

import ast
import json

from cortiq.dialects.dialect import ToolCall, ToolDialect, Tools, Unfinished
from cortiq.dialects.json_text import object_reader, read_json


def parse(text: str) -> list[ToolCall]:
    """Return all calls of a list, or of lines."""
    try:
        lines = ast.parse(text.strip()).body
    except (SyntaxError, RecursionError, MemoryError):
        raise Unfinished("no Python expression") from None
    if not lines or not all(isinstance(line, ast.Expr) for line in lines):
        raise ValueError("no calls")
    values = [line.value for line in lines if isinstance(line, ast.Expr)]
    return [_call(node) for v in values for node in (v.elts if isinstance(v, ast.List) else [v])]


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


def _dialect(name: str, opens: str, closes: str) -> ToolDialect:
    objects = object_reader(opens, closes)

    def read(text: str, tools: Tools, final: bool) -> tuple[list[ToolCall], int]:
        """Read calls (`dialect.CallReader`); only literals are read, nothing is run."""
        body = text.removeprefix(opens).strip()
        if body.startswith(("[{", "{")):
            return objects(text, tools, final)
        return parse(body.removesuffix(closes)), len(text)

    return ToolDialect(name, lambda template: opens in template, opens, closes, read=read)


DIALECT = _dialect("pythonic", "<|tool_call_start|>", "<|tool_call_end|>")
OLMO = _dialect("olmo", "<function_calls>", "</function_calls>")
