"""The runtime: models opened and placed, sequences advanced, text generated and scored."""

from __future__ import annotations
