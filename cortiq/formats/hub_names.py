"""Names of models on the hub: a repository, which of its files, and a revision.

`hf:ORGANISATION/NAME:FILES@REVISION`. FILES is a quantisation of a repository of GGUF files
(`Q4_K_M`), a file's name, or a pattern with `*`; without it the repository must hold one model.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote

from cortiq.errors import ModelNotFoundError
from cortiq.formats.cache import models_folder

PREFIX = "hf:"
FORM = "hf:ORGANISATION/NAME:FILES@REVISION"

_REVISION = r"@(?P<{}>[A-Za-z0-9][\w./-]*)"
_NAME = re.compile(
    r"hf:(?P<repository>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)"
    rf"(?:{_REVISION.format('first')})?(?::(?P<files>[\w*?][\w.*?+/ -]*))?"
    rf"(?:{_REVISION.format('last')})?",
    re.ASCII,
)


class HubName(NamedTuple):
    """A model on the hub.

    Attributes
    ----------
    repository : organisation and name.
    files : quantisation, file or pattern; "" for what the repository holds.
    revision : branch, tag or commit.
    """

    repository: str
    files: str
    revision: str

    @property
    def name(self) -> str:
        """The name as the user writes it, with the revision."""
        chosen = f":{self.files}" if self.files else ""
        return f"{PREFIX}{self.repository}{chosen}@{self.revision}"

    @property
    def folder(self) -> Path:
        """The folder in the cache, one for every name."""
        return models_folder() / quote(self.name, safe="@")

    def choosing(self, files: str) -> str:
        """Return the name of other files of the repository, as short as it can be."""
        revision = "" if self.revision == "main" else f"@{self.revision}"
        return f"{PREFIX}{self.repository}:{files}{revision}"


def is_hub_name(name: str) -> bool:
    """Return whether a name is that of a repository, with the prefix."""
    return _NAME.fullmatch(name) is not None


def parse(name: str) -> HubName:
    """Read a name; without a revision it is "main", which may also stand before FILES."""
    match = _NAME.fullmatch(name)
    if match is None or (match["first"] and match["last"]) or ".." in re.split("[/:@]", name):
        raise ModelNotFoundError(f"is not {FORM}", where=name)
    revision = match["first"] or match["last"] or "main"
    return HubName(match["repository"], match["files"] or "", revision)


def names_in_cache() -> dict[str, Path]:
    """Return the folders of fetched models by name, whatever is left of them."""
    folders = sorted(models_folder().glob(f"{quote(PREFIX)}*"))
    return {unquote(folder.name): folder for folder in folders if folder.is_dir()}
