"""Generate tables of pages from the code: weight formats, backends, domains of options.

`--write` puts them there; without it they are compared with the pages, and the exit status is 1 if
a page says something else. (The table of families is `model_table.py`'s.)
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from cortiq.domains import AnyOf, Domain, InstanceOf, TypedValue, domains_of
from cortiq.ir.layers import LAYERS
from cortiq.ir.ops import PRIMITIVES
from cortiq.ir.slots import Slot
from cortiq.numerics.layouts import LAYOUTS, Layout
from cortiq.numerics.rope_scaling import KINDS
from cortiq.option_values import OptionSpec
from cortiq.options import LoadOptions, specs
from cortiq_conformance.operators import operators

ROOT = Path(__file__).parent.parent
README, IR = ROOT / "README.md", ROOT / "docs" / "ir.md"
AUTHORS = ROOT / "docs" / "writing-a-backend.md"
BEGIN, END = "<!-- table: tools/tables.py {} -->\n", "<!-- end of the table -->\n"


def formats() -> Iterator[str]:
    """Yield one row per weight format: its origin and its bits per weight."""
    yield "| format | found in | bits of a weight |"
    yield "|---|---|---|"
    own: OptionSpec = specs(LoadOptions)["weight_format"]
    for name, layout in LAYOUTS.items():
        if name in own.choices:
            where = "made from floats: `--weight-format`"
        elif layout.ggml_type is None:
            where = "quantised Hugging Face folders"
        else:
            where = "GGUF" if layout.kind == "blocks" else "GGUF, Hugging Face folders"
        yield f"| `{name}` | {where} | {_bits(layout)} |"


def _bits(layout: Layout) -> str:
    if layout.kind == "parts":
        return {"w8": "8", "w8b256": "8", "w16": "16"}.get(layout.name, "-")
    return f"{8 * layout.block_bytes / (layout.block or 1):g}"


def backends() -> Iterator[str]:
    """Yield one row per backend in this repository: its package and its description."""
    yield "| backend | what it is | to have it |"
    yield "|---|---|---|"
    core = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for file in sorted(
        [*ROOT.glob("backends/*/pyproject.toml"), *ROOT.glob("plugins/*/pyproject.toml")]
    ):
        project = tomllib.loads(file.read_text("utf-8"))["project"]
        sentence = project["description"].rstrip(".")
        name = project["name"]
        install = _install(name, file.parent, core)
        yield f"| `{name.removeprefix('cortiq-')}` | {sentence} | {install} |"


def _install(name: str, folder: Path, core: Mapping) -> str:
    needed = any(need.startswith(name) for need in core["dependencies"])
    top = ", as at the top of this page" if needed else ""
    return f"`pip install -e {folder.relative_to(ROOT)}`{top}"


def options() -> Iterator[str]:
    """Yield one row per class: the domains of its options, and constraints between them."""
    yield "| of | options | and |"
    yield "|---|---|---|"
    kinds = dict.fromkeys([*PRIMITIVES, *LAYERS, *Slot.__subclasses__()])
    records = dict.fromkeys(part for kind in kinds for part in _records(kind))
    for kind in (*kinds, *records):
        grouped: dict[str, list[str]] = {}
        for name, domain in domains_of(kind).items():
            if domain != TypedValue(bool):
                grouped.setdefault(domain.text(), []).append(f"`{name}`")
        listed = "; ".join(f"{', '.join(names)}: {text}" for text, names in grouped.items())
        relations = "; ".join(relation.text for relation in getattr(kind, "relations", ()))
        if listed:
            yield f"| `{kind.__name__}` | {listed} | {relations} |"


def _records(kind: type) -> Iterator[type]:
    """Yield the dataclasses that options hold, nested ones included, except rotary scalings."""
    for domain in domains_of(kind).values():
        parts: tuple[Domain, ...] = domain.domains if isinstance(domain, AnyOf) else (domain,)
        for part in parts:
            if isinstance(part, InstanceOf) and part.type not in KINDS.values():
                yield part.type
                yield from _records(part.type)


def primitives() -> Iterator[str]:
    """A row a primitive: what it takes, returns and keeps."""
    yield "| operator | inputs | weights by role | outputs | state |"
    yield "|---|---|---|---|---|"
    for op in operators():
        columns = (op.inputs, op.weights, op.outputs, op.state)
        cells = (", ".join(f"`{text}`" for text in column) for column in columns)
        yield f"| `{op.name}` | {' | '.join(cells)} |"


TABLES: Mapping[str, tuple[Path, Callable[[], Iterator[str]]]] = {
    "backends": (README, backends),
    "formats": (README, formats),
    "operators": (AUTHORS, primitives),
    "options": (IR, options),
}


def main() -> int:
    """Compare the page with the generated one, or write it."""
    wrong = []
    for name, (page, rows) in TABLES.items():
        text = page.read_text("utf-8")
        head, found, rest = text.partition(BEGIN.format(name))
        _, _, tail = rest.partition(END)
        table = "".join(f"{row}\n" for row in rows())
        wanted = f"{head}{found}{table}{END}{tail}"
        if "--write" in sys.argv and found:
            page.write_text(wanted, "utf-8")
        elif not found or text != wanted:
            wrong.append(page.name)
    for page_name in dict.fromkeys(wrong):
        print(f"{page_name} is not what the code says: python tools/tables.py --write")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
