"""Find the dialect that a chat template asks for: plugins' first, then the built-in ones."""

from __future__ import annotations

from collections.abc import Sequence

from cortiq.dialects import (
    apertus,
    cohere,
    deepseek,
    dsml,
    gemma,
    glm,
    granite,
    harmony,
    hermes,
    hunyuan,
    internlm,
    kimi,
    llama,
    minimax,
    mistral,
    nemotron,
    pythonic,
    qwen_xml,
    seed,
)
from cortiq.dialects.dialect import ToolDialect

OWN = (
    seed.DIALECT, *dsml.DIALECTS, pythonic.OLMO, qwen_xml.DIALECT, glm.DIALECT, hermes.DIALECT,
    minimax.DIALECT, mistral.DIALECT, deepseek.DIALECT, kimi.DIALECT, pythonic.DIALECT,
    harmony.DIALECT, gemma.DIALECT, nemotron.DIALECT, hunyuan.DIALECT, granite.DIALECT,
    cohere.DIALECT, apertus.DIALECT, internlm.DIALECT, llama.DIALECT,
)  # fmt: skip
"""Our dialects; the first that fits a template is taken."""


def dialect_of(template: str | None, others: Sequence[ToolDialect] = ()) -> ToolDialect | None:
    """Return the dialect a chat template asks for; None if it does not support tools.

    Parameters
    ----------
    others : dialects of plugins, which come first.
    """
    if template is None or "tools" not in template:
        return None
    return next((dialect for dialect in (*others, *OWN) if dialect.fits(template)), None)
