"""Descriptions of quantised matrices in folders: what a configuration says, checked by the tensors.

The tensors decide how they are read; this is what they do not say themselves (MLX's bits, the
version of GPTQ's zero points), and what they are checked against. Activations and caches that a
checkpoint asks to be quantised stay as they are: weights are the file's, arithmetic is ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from cortiq.errors import FormatError, shown

KEYS = ("quantization_config", "compression_config", "quantization")
"""Keys of config.json that describe quantised weights; MLX writes the last one."""
OPT_FILE = "hf_quant_config.json"
"""File in which modelopt says so where config.json does not."""
METHODS: Mapping[str, frozenset[str]] = {
    "compressed-tensors": frozenset({"packed", "int8", "fp8", "nvfp4", "mxfp4"}),
    "gptq": frozenset({"gptq"}),
    "awq": frozenset({"awq"}),
    "auto-round": frozenset({"gptq", "awq", "packed", "fp8", "nvfp4", "mxfp4"}),
    "fp8": frozenset({"fp8", "mxfp4"}),
    "fbgemm_fp8": frozenset({"fp8"}),
    "modelopt": frozenset({"fp8", "nvfp4", "mxfp4", "int8", "int4"}),
    "bitsandbytes": frozenset({"nf4", "fp4", "int8"}),
    "hqq": frozenset({"hqq"}),
    "quark": frozenset({"quark", "fp8", "mxfp4", "int8"}),
    "mxfp4": frozenset({"mxfp4"}),
    "mlx": frozenset({"mlx"}),
    "bitnet": frozenset({"ternary"}),
}
"""Kinds of matrices that folders of each method may hold."""
INTEL, OPT = "auto-round", "modelopt"
SAME = {"intel/auto-round": INTEL, "autoround": INTEL, "modelopt_fp4": OPT, "gptqmodel": "gptq",
        "modelopt_mixed": OPT, "modelopt_fp8": OPT}  # fmt: skip
NOT_APPLIED = re.compile(
    r".+\.(input_scale|input_global_scale|output_scale|output_global_scale|[kqv]_scale|kv_scale|"
    r"input_zero_point|activation_scale|prob_output_scale|input_amax|pre_quant_scale_inv)"
)
"""Tensors for activations and caches, which are not quantised that way here."""


@dataclass(frozen=True)
class Quantisation:
    """A folder's own description of its quantised matrices.

    Attributes
    ----------
    method : a key of `METHODS`, or empty where no file says one.
    where : the file that says so. ignored : modules that are not quantised, as the file lists them.
    bits, group : of integer codes; None where not said. own : both of single modules, by name.
    symmetric : whether GPTQ's zero points are in the middle. zeros_less_one : whether they are
        stored less one (version 1).
    blocks : rows and columns under one scale of FP8. codes : type of packed integers, or BitNet's
        way of its codes.
    layers : patterns of modules, each with the kinds that those may be.
    notes : what the file asks for and is not done.
    """

    method: str = ""
    where: str = ""
    ignored: tuple[str, ...] = ()
    bits: tuple[int, ...] = ()
    group: int | None = None
    own: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    symmetric: bool = False
    zeros_less_one: bool = True
    blocks: tuple[tuple[int, int], ...] = ()
    codes: str = ""
    layers: tuple[tuple[str, frozenset[str]], ...] = ()
    notes: tuple[str, ...] = ()

    def fail(self, what: str) -> None:
        """Raise FormatError: the tensors are not what the configuration says."""
        raise FormatError(f"contradicts the tensors: {what}", where=self.where)

    def check_kind(self, module: str, kind: str) -> None:
        """Check that the method has such matrices, and that the module is not ignored."""
        if self.method and kind not in METHODS[self.method]:
            self.fail(f"{module} is {kind}, which {self.method} is not")
        said = [kinds for pattern, kinds in self.layers if matches(module, pattern)]
        if said and not any(kind in kinds for kinds in said):
            listed = " or ".join(sorted(frozenset().union(*said))) or "not quantised"
            self.fail(f"{module} is {kind}, and should be {listed}")
        for pattern in self.ignored:
            if matches(module, pattern):
                self.fail(f"{module} is quantised ({kind}), but ignored by {shown(pattern)}")

    def check_plain(self, module: str) -> None:
        """Check that a module of plain floats is not one that is named as quantised."""
        named = any(pattern == module and kinds for pattern, kinds in self.layers)
        if named and not any(matches(module, pattern) for pattern in self.ignored):
            self.fail(f"{module} is not quantised, and should be")

    def check_table(self, module: str, table: str) -> None:
        """Check the table of a module of bitsandbytes."""
        if self.codes and self.codes != table:
            self.fail(f"{module} has codes of {table}, not of {self.codes}")

    def check_bits(self, module: str, bits: int, most: bool = False) -> None:
        """Check the bits of codes; with `most`, that no more than these are said."""
        if self.own or not self.bits:
            return
        if bits not in self.bits and not (most and max(self.bits) <= bits):
            self.fail(f"{module} has codes of {bits} bits, not {' or '.join(map(str, self.bits))}")

    def check_group(self, module: str, group: int, columns: int) -> None:
        """Check the columns of a group; −1 stands for all."""
        said = self.group
        if said is not None and not self.own and (said if said > 0 else columns) != group:
            self.fail(f"{module} has groups of {group} columns, not {said}")

    def check_method(self, module: str, method: str) -> None:
        """Check a method that the tensors' shapes show."""
        if self.method in ("gptq", "awq") and method != self.method:
            self.fail(f"{module} is packed as {method} does it, not as {self.method}")

    def bits_and_group(self, module: str) -> tuple[int, int]:
        """Return both for a module of MLX's, whose tensors do not say them."""
        if module in self.own:
            return self.own[module]
        if len(self.bits) != 1 or not self.group or self.group < 1:
            what = f"does not say the bits and group_size of {module}"
            raise FormatError(what, where=self.where or "config.json")
        return self.bits[0], self.group


def matches(module: str, pattern: str) -> bool:
    """Return whether a list of ignored modules means this one.

    A pattern is a name, a regular expression after `re:` that matches its beginning, or a name
    with `*`, as modelopt writes them.
    """
    if pattern.startswith("re:"):
        try:
            return re.match(pattern[3:], module) is not None
        except re.error:
            return False
    if "*" in pattern:
        parts = ".*".join(map(re.escape, pattern.split("*")))
        return re.fullmatch(parts, module) is not None
    return module == pattern
