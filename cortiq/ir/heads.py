"""Draft heads: a program's description of the entry graphs that guess tokens further ahead.

Row j of module k takes the token at position j+k+1 and a hidden row of position j, and its logits
are for the token at j+k+2. All modules are entry graphs of one program: they share weights with
the trunk, have slots of their own, and recall the trunk's rows from a slot that it writes.
"""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.ir.op import Described

RECALLED = "recalled"
"""Name of a module's hidden rows, as [heads, dim]; a row may supply its own instead."""

SHORTLIST = "shortlist"
"""Name of the logits of the first ids of the vocabulary alone, where an entry has them."""

CHAIN, CASCADE, STACK, BLOCK = "chain", "cascade", "stack", "block"
MARKOV_BLOCK = "markov block"

MTP, MIMO, EAGLE3, DFLASH, DSPARK = "mtp", "mimo", "eagle3", "dflash", "dspark"
"""Names of draft heads and block drafters, as `--draft` has them."""

HEAD_FACTS = "draft_head", "block_drafter"
"""Facts of a program that are a `DraftHead`."""
PLACE, LAST_ROW, LAST_CONTEXT, LISTED = "place", "last", "last.context", "listed"
"""Inputs of a Markov block: a row's position in the text, i32[1]; the last row of the block; the
last of the trunk; where a window is seen, its positions, i32[1, window]."""
BASE_SCORES, REDUCED = "scores", "dspark.reduced"
"""Inputs of its second entry: a row's scores, and what confidence is computed of; a row's value
of that name is the latter."""
CONFIDENCE = "dspark.confidence"
"""The chance that a row's token is accepted if those before it are, f32[1], where it is known."""

KEPT_ROWS = "trunk.kept"
"""Slot, and start of the nodes, with which a trunk keeps rows for what drafts."""


@dataclass(frozen=True)
class DraftHead(Described):
    """The modules of a draft head, `Program.facts["draft_head"]`; or a block drafter,
    `Program.facts["block_drafter"]`. A program may have both.

    Attributes
    ----------
    style : whose hidden rows a module takes. `chain`: one module; for drafts after the first its
        own output stands in for the trunk's row. `cascade`: module k takes module k−1's output at
        the same position. `stack`: every module takes the trunk's. `block`: one entry drafts a
        whole block at once, from rows of several of the trunk's layers. `markov block`: as that,
        but its rows only score; a second entry adds to each row's scores what the token before
        contributes, from left to right.
    entries : names of the entry graphs, by depth.
    source : the trunk's value that is kept: `hidden` after its last norm, or a layer's output; for
        a block several, with commas between.
    size, mask_token : rows of a block, and what stands in those that are to be drafted.
    """

    style: str
    entries: tuple[str, ...]
    source: str
    size: int = 0
    mask_token: int = 0

    @property
    def name(self) -> str:
        """Its name, as `--draft` has it."""
        if self.style in (BLOCK, MARKOV_BLOCK):
            return DFLASH if self.style == BLOCK else DSPARK
        return EAGLE3 if EAGLE3 in self.entries else MIMO if self.style == STACK else MTP

    @property
    def deepest(self) -> int:
        """Drafts that the modules were made for; a chain goes on."""
        if self.style == MARKOV_BLOCK:  # its first row drafts, too
            return self.size
        return self.size - 1 if self.style == BLOCK else len(self.entries)

    def output(self, depth: int) -> str:
        """Return the name of the output that replaces a hidden row: after the last norm if those
        rows are after the trunk's, else before it.
        """
        return f"{self.entries[depth]}.{'hidden' if self.source == 'hidden' else 'out'}"
