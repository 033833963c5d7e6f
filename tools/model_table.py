"""Generate the table of docs/models.md from the registry of families.

Without `--write` it is compared with the page; exit 1 if the page says something else.
"""

from __future__ import annotations

import sys
from pathlib import Path

from cortiq.models.registry import describe_families

PAGE = Path(__file__).parent.parent / "docs" / "models.md"
BEGIN, END = "<!-- table: tools/model_table.py -->\n", "<!-- end of the table -->\n"


def code(names: tuple[str, ...]) -> str:
    """Return names in the page's code style."""
    return ", ".join(f"`{name}`" for name in names)


def table() -> str:
    """Yield one row per family, in the registry's order."""
    rows = ["| family | what it is | reads | of these in GGUF files |", "|---|---|---|---|"]
    for info in describe_families():
        what = info.summary.rstrip(".")
        rows.append(f"| `{info.name}` | {what} | {code(info.architectures)} | {code(info.gguf)} |")
    return "\n".join(rows) + "\n"


def main() -> int:
    """Compare the page with the generated one, or write it."""
    text = PAGE.read_text("utf-8")
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    wanted = f"{head}{BEGIN}{table()}{END}{tail}"
    if "--write" in sys.argv:
        PAGE.write_text(wanted, "utf-8")
    elif text != wanted:
        print(f"{PAGE.name} is not what the registry says: python tools/model_table.py --write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
