"""IA³ adapters on disk: PEFT folders with a vector a module, which multiplies its input or output.

The tensors are named `base_model.model.MODULE.ia3_l`: [out, 1] for outputs, [1, in] for the inputs
of feed-forward modules. Source: Liu et al. (arXiv 2205.05638); PEFT's `tuners/ia3`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from cortiq.errors import FormatError

_NAME = re.compile(r"(?P<module>.+?)\.ia3_l(?:\.default)?(?:\.weight)?")


@dataclass(frozen=True)
class ModuleVector:
    """A vector of a module.

    Attributes
    ----------
    tensor : of the adapter. is_input : it multiplies what the module reads; else its output, with
        the bias.
    """

    tensor: str
    is_input: bool


def module_vectors(
    shapes: Mapping[str, tuple[int, ...]], prefix: str, where: str
) -> dict[str, ModuleVector]:
    """Return the vectors by the tensor of the model that the module has.

    Raises
    ------
    FormatError : a tensor is no vector of a module.
    """
    found = {}
    for name, shape in shapes.items():
        named = _NAME.fullmatch(name.removeprefix(prefix))
        if named is None:
            raise FormatError(f"has a tensor {name!r} that no IA³ adapter has", where=where)
        if len(shape) != 2 or 1 not in shape:
            what = f"{name} is {list(shape)}; vectors are [out, 1] or [1, in]"
            raise FormatError(what, where=where)
        found[f"{named['module']}.weight"] = ModuleVector(name, shape[0] == 1 and shape[1] > 1)
    return found
