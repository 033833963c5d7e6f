"""Generate the tables of docs/models.md: families, today's checkpoints, pre-tokenizers.

The first follows from the registry, the second from it and `tests/data/checkpoints.json`, whose
configurations `tests/pure/test_todays_checkpoints.py` builds. Without `--write` they are compared
with the page; exit 1 if the page says something else.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from cortiq.models.registry import describe_families, families
from cortiq.tokenizer.pretokenizers import CHARACTER_LEVEL, PRE_TOKENIZERS

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "models.md"
CHECKPOINTS = ROOT / "tests" / "data" / "checkpoints.json"
BEGIN, END = "<!-- table: tools/model_table.py -->\n", "<!-- end of the table -->\n"
BEGIN_CHECKPOINTS = "<!-- checkpoints: tools/model_table.py -->\n"
BEGIN_NAMES = "<!-- pre-tokenizers: tools/model_table.py -->\n"


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


def checkpoints() -> list[dict[str, Any]]:
    """Return today's checkpoints, the most downloaded first."""
    return json.loads(CHECKPOINTS.read_text("utf-8"))


def config_of(row: dict[str, Any]) -> dict[str, Any] | None:
    """Return the published configuration of a checkpoint's text model, None if it is not known."""
    named = {other["name"]: other for other in checkpoints()}[row.get("config_of", row["name"])]
    if "config" not in named:
        return None
    repeated = {key: part * times for key, (part, times) in named.get("repeat", {}).items()}
    return {**named["config"], **repeated}


def opens(row: dict[str, Any]) -> str:
    """Return whether a checkpoint opens, or what is missing."""
    if row["architecture"] not in families():
        return f"no: architecture `{row['architecture']}`"
    return "no: its configuration is not tested" if config_of(row) is None else "yes"


def checkpoint_table() -> str:
    """Return one row per checkpoint."""
    head = ("checkpoint", "downloads", "architecture", "format", "tokenizer", "template", "opens")
    rows = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in checkpoints():
        below = "below " if row.get("below") else ""
        count = f"{below}{row['downloads']:.3g} M ({row['seen']})"
        cells = (f"`{row['name']}`", count, f"`{row['architecture']}`", row["format"],
                 row["tokenizer"], row["template"], opens(row))  # fmt: skip
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def pre_tokenizer_table() -> str:
    """Return one row per pre-tokenizer of GGUF files, with the names that mean it."""
    flags = {"ignore_merges": "whole words first", "add_bos": "BOS", "nfc": "NFC"}
    rows = ["| names in `tokenizer.ggml.pre` | stages | and |", "|---|---|---|"]
    for definition in dict.fromkeys(PRE_TOKENIZERS.values()):
        names = tuple(sorted(n for n, other in PRE_TOKENIZERS.items() if other == definition))
        said = ", ".join(text for flag, text in flags.items() if getattr(definition, flag))
        rows.append(f"| {code(names)} | {len(definition.stages)} | {said} |")
    rows.append(f"| {code(CHARACTER_LEVEL)} | lines | characters instead of bytes |")
    return "\n".join(rows) + "\n"


def filled(text: str, begin: str, made: str) -> str:
    """Return a page with a table between its marks."""
    head, _, rest = text.partition(begin)
    return f"{head}{begin}{made}{END}{rest.partition(END)[2]}"


def page(text: str) -> str:
    """Return the page with its tables as they should be."""
    made = {
        BEGIN: table(),
        BEGIN_CHECKPOINTS: checkpoint_table(),
        BEGIN_NAMES: pre_tokenizer_table(),
    }
    for begin, rows in made.items():
        text = filled(text, begin, rows)
    return text


def main() -> int:
    """Compare the page with the generated one, or write it."""
    text = PAGE.read_text("utf-8")
    wanted = page(text)
    if "--write" in sys.argv:
        PAGE.write_text(wanted, "utf-8")
    elif text != wanted:
        print(f"{PAGE.name} is not what the registry says: python tools/model_table.py --write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
