"""Rows of keys and values as the words of a page, and back."""

from __future__ import annotations

import numpy as np

from cortiq.backend import KVPlanes
from cortiq.ir import KVRows
from cortiq.numerics.contract import TILE
from cortiq.numerics.quantise import ZERO_ROW_EXPONENT


def head_words(slot: KVRows) -> int:
    """Count the words of a page's head: key planes, value planes, exponents."""
    return 2 * TILE * -(-slot.key_dim // 4) + 32 * slot.value_dim + 2 * TILE


def planes_of(slot: KVRows, page: np.ndarray) -> KVPlanes:
    """Read the 64 rows of a page."""
    heads, words = page.reshape(slot.heads, head_words(slot)), -(-slot.key_dim // 4)
    keys, values, exponents = np.split(heads, [2 * TILE * words, heads.shape[1] - 2 * TILE], axis=1)
    keys = keys.reshape(slot.heads, 2, words, TILE).transpose(3, 1, 0, 2)
    keys = np.ascontiguousarray(keys).view(np.int8)[..., : slot.key_dim]
    values = values.reshape(slot.heads, 2, 16, slot.value_dim)
    bytes_ = np.ascontiguousarray(values)[..., None].view(np.int8)  # [heads, 2, 16, channels, 4]
    values = bytes_.transpose(2, 4, 1, 0, 3).reshape(TILE, 2, slot.heads, slot.value_dim)
    e = exponents.view(np.int32).astype(np.int8).reshape(slot.heads, 2, TILE).transpose(2, 1, 0)
    value_e = e[:, 1] if slot.value_dim else np.full_like(e[:, 1], ZERO_ROW_EXPONENT)
    return KVPlanes(keys[:, 0], keys[:, 1], e[:, 0], values[:, 0], values[:, 1], value_e)


def words_of(slot: KVRows, planes: KVPlanes) -> np.ndarray:
    """Write 64 rows as a page."""
    words = -(-slot.key_dim // 4)
    keys = np.zeros((TILE, 2, slot.heads, 4 * words), np.int8)
    keys[..., : slot.key_dim] = np.stack([planes.key_high, planes.key_low], axis=1)
    values = np.stack([planes.value_high, planes.value_low], axis=1)
    e = np.stack([planes.key_exponent, planes.value_exponent], axis=1).astype(np.int32)
    key_words = np.ascontiguousarray(keys).view(np.uint32).transpose(2, 1, 3, 0)
    fours = values.reshape(16, 4, 2, slot.heads, slot.value_dim).transpose(3, 2, 0, 4, 1)
    value_words = np.ascontiguousarray(fours).view(np.uint32)
    parts = (key_words, value_words, e.view(np.uint32).transpose(2, 1, 0))
    return np.concatenate([part.reshape(slot.heads, -1) for part in parts], axis=1).reshape(-1)
