"""MXFP4 weights of Hugging Face folders: pairs of tensors, read as one in GGUF's layout.

A matrix [..., rows, columns] is held as `NAME_blocks` [..., rows, columns/32, 16], two codes a
byte, the even one low, and `NAME_scales` [..., rows, columns/32], the exponents. A block of our
layout is the exponent, then 16 bytes with code i low and code i+16 high: the codes are the same.
Source: the OCP microscaling formats; the checkpoints of GPT-OSS.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cortiq.errors import FormatError
from cortiq.formats.mapped import MappedTensors, TensorInfo

METHOD = "mxfp4"
"""`quant_method` of such a folder."""
BLOCKS, SCALES, BLOCK = "_blocks", "_scales", 32


@dataclass(frozen=True)
class MXFP4Tensor:
    """A tensor of codes and exponents, interleaved on access."""

    name: str
    shape: tuple[int, ...]
    blocks: npt.NDArray[np.uint8]
    scales: npt.NDArray[np.uint8]
    type: str = "MXFP4"
    lazy: bool = True

    @property
    def raw(self) -> npt.NDArray[np.uint8]:
        """uint8 [..., rows, 17 bytes a block]."""
        codes = np.empty((*self.blocks.shape[:-1], BLOCK), np.uint8)
        codes[..., 0::2], codes[..., 1::2] = self.blocks & 15, self.blocks >> 4
        packed = codes[..., : BLOCK // 2] | codes[..., BLOCK // 2 :] << 4
        joined = np.concatenate([self.scales[..., None], packed], axis=-1)
        return joined.reshape(*self.shape[:-1], -1)


class MXFP4Tensors(MappedTensors):
    """The tensors of a folder, every pair of codes and exponents as one tensor `NAME.weight`.

    Raises
    ------
    FormatError : a pair is incomplete, or its shapes do not fit each other.
    """

    def __init__(self, inner: MappedTensors) -> None:
        pairs = {
            name.removesuffix(BLOCKS): info
            for name, info in inner.tensors.items()
            if name.endswith(BLOCKS) and info.type == "U8"
        }
        tensors = dict(inner.tensors)
        for stem, info in pairs.items():
            scales = tensors.pop(f"{stem}{SCALES}", None)
            fits = scales is not None and scales.shape == info.shape[:-1] and scales.type == "U8"
            if not fits or info.shape[-1] != BLOCK // 2:
                message = f"{stem}{BLOCKS} {list(info.shape)} has no {SCALES} that fit"
                raise FormatError(message, where=str(inner.path))
            del tensors[f"{stem}{BLOCKS}"]
            tensors[f"{stem}.weight"] = _joined_info(stem, info)
        super().__init__(inner.path, inner.paths, tensors, inner._buffers)
        self._inner, self._stems = inner, {f"{stem}.weight": stem for stem in pairs}

    def joined(self, name: str) -> MXFP4Tensor | None:
        """Return the tensor of a pair, or None for an ordinary tensor."""
        stem = self._stems.get(name)
        if stem is None:
            return None
        blocks, scales = (
            MappedTensors.raw(self._inner, f"{stem}{part}") for part in (BLOCKS, SCALES)
        )
        return MXFP4Tensor(name, self.tensors[name].shape, blocks, scales)

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """Return the bytes of an ordinary tensor."""
        return self._inner.raw(name)

    def close(self) -> None:
        """Release the files."""
        super().close()
        self._inner.close()


def _joined_info(stem: str, info: TensorInfo) -> TensorInfo:
    *outer, groups, half = info.shape
    shape = (*outer, groups * BLOCK)
    row = groups * (half + 1)
    total = info.nbytes // half * (half + 1)
    return TensorInfo(f"{stem}.weight", shape, "MXFP4", info.part, info.offset, total, row)
