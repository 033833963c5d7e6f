"""The chat template of Voxtral's folders, which hold none: mistral-common's form 7."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cortiq.formats.strict_json import read_object

TEKKEN = "tekken.json"
PARTS = (
    "{% macro parts(content) %}{% if content is string %}{{ content }}{% else %}"
    "{% for p in content %}{% if p.type == 'text' %}{{ p.text }}"
    "{% elif p.type == 'audio' %}[BEGIN_AUDIO][AUDIO]"
    "{% else %}{{ raise_exception('a part is neither text nor sound') }}"
    "{% endif %}{% endfor %}{% endif %}{% endmacro %}"
)
TEMPLATE = PARTS + (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'system' %}[SYSTEM_PROMPT]{{ parts(m.content) }}[/SYSTEM_PROMPT]"
    "{% elif m.role == 'user' %}[INST]{{ parts(m.content) }}[/INST]"
    "{% elif m.role == 'assistant' %}{{ parts(m.content) }}{{ eos_token }}"
    "{% else %}{{ raise_exception('roles are system, user and assistant') }}"
    "{% endif %}{% endfor %}"
)


def template_of_tekken(folder: Path) -> str | None:
    """Return the template of a folder whose tekken.json speaks of sounds; None for others.

    Texts have no template there: whether a model follows instructions is not said.
    """
    file = folder / TEKKEN
    given: Mapping[str, Any] = read_object(file) if file.is_file() else {}
    return TEMPLATE if isinstance(given.get("audio"), dict) else None
