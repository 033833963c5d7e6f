"""Hooks of mkdocs (`mkdocs.yml`): generated pages of the site."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
GENERATED = ("index.md", "changelog.md", "contributing.md", "api.md")
"""README.md, CHANGELOG.md, CONTRIBUTING.md, and the reference of the API."""


def pages() -> dict[str, str]:
    """Return the texts of the generated pages, by name, with links into docs/ adjusted."""
    sys.path.insert(0, str(ROOT / "tools"))
    import api_page

    names = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")
    texts = [_from_docs((ROOT / name).read_text("utf-8")) for name in names]
    return dict(zip(GENERATED, [*texts, api_page.page()], strict=True))


def _from_docs(text: str) -> str:
    text = text.replace("](docs/", "](").replace("](CHANGELOG.md", "](changelog.md")
    return text.replace("](CONTRIBUTING.md", "](contributing.md")


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages to those that mkdocs found."""
    from mkdocs.structure.files import File

    for name, text in pages().items():
        files.append(File.generated(config, name, content=text))
    return files
