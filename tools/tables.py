"""Tables of README.md, from the code: weight formats and backends; `--write` puts them there.

Without `--write` they are compared with the page; exit 1 if the page says something else. (The
table of families is `model_table.py`'s.)
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from cortiq.numerics.layouts import LAYOUTS, Layout
from cortiq.option_values import Spec
from cortiq.options import LoadOptions, specs

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "README.md"
BEGIN, END = "<!-- table: tools/tables.py {} -->\n", "<!-- end of the table -->\n"


def formats() -> Iterator[str]:
    """A row a weight format: where it is found, and what a weight takes."""
    yield "| format | found in | bits of a weight |"
    yield "|---|---|---|"
    own: Spec = specs(LoadOptions)["weight_format"]
    for name, layout in LAYOUTS.items():
        if name in own.choices:
            where = "made from floats: `--weight-format`"
        elif layout.ggml_type is None:
            where = "Hugging Face folders"
        else:
            where = "GGUF" if layout.kind == "blocks" else "GGUF, Hugging Face folders"
        yield f"| `{name}` | {where} | {_bits(layout)} |"


def _bits(layout: Layout) -> str:
    if layout.kind == "parts":
        return {"w8": "8", "w8b256": "8", "w16": "16"}.get(layout.name, "-")
    return f"{8 * layout.block_bytes / (layout.block or 1):g}"


def backends() -> Iterator[str]:
    """A row a backend that this repository holds: what brings it, and its package's sentence."""
    yield "| backend | what it is | to have it |"
    yield "|---|---|---|"
    core = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for file in sorted(
        [*ROOT.glob("backends/*/pyproject.toml"), *ROOT.glob("plugins/*/pyproject.toml")]
    ):
        project = tomllib.loads(file.read_text("utf-8"))["project"]
        sentence = project["description"].rstrip(".")
        name = project["name"]
        yield f"| `{name.removeprefix('cortiq-')}` | {sentence} | {_install(name, core)} |"


def _install(name: str, core: Mapping) -> str:
    if any(need.startswith(name) for need in core["dependencies"]):
        return "comes with `cortiq`"
    for extra, needs in core["optional-dependencies"].items():
        if any(need.startswith(name) for need in needs):
            return f"`pip install 'cortiq[{extra}]'`"
    return f"`pip install {name}`"


TABLES: Mapping[str, Callable[[], Iterator[str]]] = {"backends": backends, "formats": formats}


def main() -> int:
    """Compare or write."""
    text = wanted = PAGE.read_text("utf-8")
    for name, rows in TABLES.items():
        head, found, rest = wanted.partition(BEGIN.format(name))
        _, _, tail = rest.partition(END)
        table = "".join(f"{row}\n" for row in rows())
        wanted = f"{head}{found}{table}{END}{tail}" if found else wanted
    if "--write" in sys.argv:
        PAGE.write_text(wanted, "utf-8")
    elif text != wanted or any(BEGIN.format(name) not in text for name in TABLES):
        print(f"{PAGE.name} is not what the code says: python tools/tables.py --write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
