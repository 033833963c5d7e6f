"""Parsing of the documentation's pages: blocks of code, links, headings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *DOCS]

FENCE = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^>]+?) -->\n\n?)?"
    r"^(?P<indent> *)```(?P<language>\w*)[^\n`]*\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)
SPAN = re.compile(r"`(cortiq [a-z][^`]*)`")


@dataclass(frozen=True)
class Block:
    """A fenced block of code.

    Attributes
    ----------
    where : page and line, for messages.
    not_run : why it cannot be run by a test; empty where it is run.
    """

    where: str
    language: str
    text: str
    not_run: str


def blocks(page: Path) -> list[Block]:
    text = page.read_text("utf-8")
    return [
        Block(
            f"{page.name}:{text.count(chr(10), 0, found.start()) + 1}",
            found["language"],
            found["text"],
            found["reason"] or "",
        )
        for found in FENCE.finditer(text)
    ]


def prose(page: Path) -> str:
    """A page without its blocks."""
    return FENCE.sub("", page.read_text("utf-8"))


def anchors(page: Path) -> set[str]:
    """Names of a page's headings, as GitHub and mkdocs both make them of plain titles."""
    plain = (
        re.sub(r"[^\w\s-]", "", title).strip().lower() for title in HEADING.findall(prose(page))
    )
    return {re.sub(r"[\s]", "-", title) for title in plain}


def links(page: Path) -> list[str]:
    """Targets of a page's links, those to other sites left out."""
    return [target for target in LINK.findall(prose(page)) if "://" not in target]


def commands(block: Block) -> list[str]:
    """Command lines of a shell block, comments left out, continued lines joined."""
    joined = block.text.replace("\\\n", " ")
    lines = (re.sub(r"(^|\s)#.*", "", line).strip() for line in joined.splitlines())
    return [line for line in lines if line]
