"""Hooks of mkdocs (`mkdocs.yml`): generated pages of the site."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
GENERATED = ("index.md", "changelog.md", "api.md")
"""README.md, CHANGELOG.md, and the reference of the API."""


def pages() -> dict[str, str]:
    """Return the texts of the generated pages, by name, with links into docs/ adjusted."""
    sys.path.insert(0, str(ROOT / "tools"))
    import api_page

    index = (ROOT / "README.md").read_text("utf-8")
    changes = (ROOT / "CHANGELOG.md").read_text("utf-8")
    texts = (_from_docs(index), _from_docs(changes), api_page.page())
    return dict(zip(GENERATED, texts, strict=True))


def _from_docs(text: str) -> str:
    return text.replace("](docs/", "](").replace("](CHANGELOG.md", "](changelog.md")


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages to those that mkdocs found."""
    from mkdocs.structure.files import File

    for name, text in pages().items():
        files.append(File.generated(config, name, content=text))
    return files
