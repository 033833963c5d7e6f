"""Key and value caches of the CPU backend's native core, for tests of single ops."""

from __future__ import annotations

import ctypes

import numpy as np
from native_ops import address, aligned_zeros, args, native

from cortiq.numerics.quantise import Quantised

TILE = 64


def _library():
    library = native.library()
    library.cortiq_kv_page_bytes.restype = ctypes.c_int64
    library.cortiq_attend_workspace.restype = ctypes.c_int64
    for name in ("cortiq_kv_read", "cortiq_kv_write"):
        getattr(library, name).argtypes = (
            [ctypes.c_void_p] * 2 + [ctypes.c_int32] * 2 + [ctypes.c_void_p] * 4
        )
    return library


class Cache:
    """Pages of several sequences, every byte set before a row is written over it."""

    def __init__(self, sequences, positions, heads, key_dim, value_dim, page_tiles=1, poison=0xA5):
        self.shape = heads, key_dim, value_dim
        size = _library().cortiq_kv_page_bytes(heads, key_dim, value_dim, page_tiles)
        count = -(-positions // (TILE * page_tiles))
        self.pages = []
        for _ in range(sequences):
            made = [aligned_zeros(size) for _ in range(count)]
            for page in made:
                page[:] = poison
            self.pages.append(made)
        self.tables = [np.array([address(p) for p in pages], np.uint64) for pages in self.pages]
        self.table = np.array([address(t) for t in self.tables], np.uint64)
        self.page_tiles = page_tiles

    def struct(self, parts=None, count=None):
        """`cortiq_kv` of this cache; `parts` are the batch's segments."""
        where = None if parts is None else ctypes.addressof(parts)
        return args.KVSlotArgs(
            address(self.table), where, address(count), *self.shape, self.page_tiles
        )

    def write(self, sequence, first, keys, values):
        """Rows `Quantised` [n, heads, dim] from position `first` on."""
        parts = [np.ascontiguousarray(x, t) for rows in (keys, values)
                 for x, t in ((rows.q, np.int16), (rows.e, np.int8))]  # fmt: skip
        struct = self.struct()
        _library().cortiq_kv_write(
            ctypes.addressof(struct), address(self.tables[sequence]), first, len(keys.q),
            *(address(part) for part in parts),
        )  # fmt: skip

    def read(self, sequence, first, count):
        """(keys, values) as `Quantised`."""
        heads, key_dim, value_dim = self.shape
        k, v = (np.empty((count, heads, d), np.int16) for d in (key_dim, value_dim))
        ke, ve = (np.empty((count, heads), np.int8) for _ in "kv")
        struct = self.struct()
        _library().cortiq_kv_read(
            ctypes.addressof(struct), address(self.tables[sequence]), first, count,
            *(address(part) for part in (k, ke, v, ve)),
        )  # fmt: skip
        return Quantised(k.astype(np.int32), ke.astype(np.int32)), Quantised(
            v.astype(np.int32), ve.astype(np.int32)
        )


def segments(*spans):
    """(start, stop, position) of each sequence's rows, and their number."""
    listed = (args.SegmentArgs * len(spans))(*(args.SegmentArgs(*span) for span in spans))
    return listed, np.array([len(spans)], np.int32)


def workspace(value_dim, positions, threads):
    """Workspace that lets `threads` threads share a query's tiles."""
    return aligned_zeros(_library().cortiq_attend_workspace(value_dim, positions, threads))
