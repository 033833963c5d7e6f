"""Drafters by name: what `--draft NAME` or `--draft NAME:ARGUMENT` makes, ours and plugins'."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from cortiq.backend import Executable
from cortiq.engine.drafters.blocks import BlockDrafter, block_head
from cortiq.engine.drafters.combined import EXTRA, CombinedDrafter, PolicyWithLookup
from cortiq.engine.drafters.heads import HeadDrafter, head_of
from cortiq.engine.drafters.lookup import LIMITS as LOOKUP_LIMITS
from cortiq.engine.drafters.lookup import LookupDrafter
from cortiq.engine.drafters.markov_blocks import MarkovBlockDrafter
from cortiq.engine.drafters.model import ModelDrafter
from cortiq.engine.drafters.turns import in_turns
from cortiq.engine.drafting import DepthPolicy, Drafter, FixedDepth, Speculation
from cortiq.engine.policy.adaptive import AdaptiveDepthFactory, DepthLimits
from cortiq.errors import CortiqError, RequestError, shown
from cortiq.ir.heads import MARKOV_BLOCK, DraftHead

OFF, AUTO = "off", "auto"
RESERVED = frozenset({OFF, AUTO})
DEFAULT_LIMITS = DepthLimits()
PolicyFactory = Callable[[int], DepthPolicy]


class DraftTarget(Protocol):
    """The model to draft for, as drafters see it."""

    @property
    def executable(self) -> Executable:
        """The compiled model; `executable.program` are its graphs."""
        ...

    def draft_model(self, name: str) -> Executable:
        """Open another model on the same backend; it is closed with this one.

        Raises
        ------
        CortiqError : there is none of this name, or its tokens are others.
        """
        ...


@dataclass(frozen=True)
class DrafterKind:
    """A way to draft that a user can name; what the hook `cortiq_drafters` brings.

    Attributes
    ----------
    name : as in `--draft NAME`.
    summary : one line for people.
    make : the drafter for a model; its second argument is what stood behind the colon.
    argument : how help names that argument; empty for kinds that take none.
    limits : between what depth moves where the user gives none.
    extra : depth on top of it that a lookup behind the chain may use (`CombinedDrafter`).
    heads : the draft head that the model must have been loaded with (`LoadOptions.heads`).
    optional : whether the argument may be missing.
    """

    name: str
    summary: str
    make: Callable[[DraftTarget, str], Drafter]
    argument: str = ""
    limits: DepthLimits = DEFAULT_LIMITS
    extra: int = 0
    heads: str = ""
    optional: bool = False

    def policies(self, depth: int | None, among: int = 1) -> PolicyFactory:
        """Return a factory of policies: always this depth, or one that adapts and rests.

        Parameters
        ----------
        among : drafters that share what tries may cost.
        """
        if depth is not None:
            return lambda prompt_tokens: FixedDepth(depth)
        learning = AdaptiveDepthFactory(replace(self.limits, afforded=self.limits.afforded / among))
        if not self.extra:
            return learning
        return lambda prompt_tokens: PolicyWithLookup(learning(prompt_tokens), self.extra)


def _lookup(target: DraftTarget, argument: str) -> Drafter:
    return LookupDrafter()


def _model(target: DraftTarget, argument: str) -> Drafter:
    return CombinedDrafter(ModelDrafter(target.draft_model(argument)))


def _head(asked: str, target: DraftTarget, argument: str) -> Drafter:
    head = head_of(target.executable.program)  # says now that there is none
    if head.name != asked:
        what = f"the model was loaded with the draft head {head.name}, not {asked}"
        raise RequestError(what, where="draft", hint=f"draft with {head.name}, or with {AUTO}")
    return CombinedDrafter(HeadDrafter(head.name))


def _block(asked: str, target: DraftTarget, argument: str) -> Drafter:
    head = block_head(target.executable.program)
    if head.name != asked:
        what = f"the model was loaded with the block drafter {head.name}, not {asked}"
        raise RequestError(what, where="draft", hint=f"load it with heads='{asked}:PATH'")
    return CombinedDrafter(block_drafter(head))


def block_drafter(head: DraftHead) -> Drafter:
    """Return what drafts with a block drafter of a program."""
    return MarkovBlockDrafter() if head.style == MARKOV_BLOCK else BlockDrafter()


LOOKUP = DrafterKind(
    "lookup", "copies what followed the last tokens before", _lookup, limits=LOOKUP_LIMITS
)
MODEL = DrafterKind(
    "model", "a smaller model of the same tokens, and lookups", _model, "PATH", extra=EXTRA
)
MTP = DrafterKind(
    "mtp", "the draft head in the model's file, and lookups", partial(_head, "mtp"),
    limits=DepthLimits(start=1), extra=EXTRA, heads="mtp",
)  # fmt: skip
MIMO = DrafterKind(
    "mimo", "MiMo's three draft layers, and lookups", partial(_head, "mimo"),
    limits=DepthLimits(deepest=3, start=1), extra=EXTRA, heads="mimo",
)  # fmt: skip
EAGLE3 = DrafterKind(
    "eagle3", "an EAGLE-3 head that reads three of the model's layers, and lookups",
    partial(_head, "eagle3"), "PATH", limits=DepthLimits(start=1), extra=EXTRA, heads="eagle3",
)  # fmt: skip
DFLASH = DrafterKind(
    "dflash", "a block drafter that reads the model's layers, and lookups",
    partial(_block, "dflash"), "PATH",
    limits=DepthLimits(start=3, acceptance=(0.85, 0.82, 0.80)), extra=EXTRA, heads="dflash",
)  # fmt: skip
DSPARK = DrafterKind(
    "dspark", "a block drafter whose drafts follow one another, of the model's file or a folder's, "
    "and lookups", partial(_block, "dspark"), "PATH",
    limits=DepthLimits(start=3, acceptance=(0.85, 0.82, 0.80)), extra=EXTRA, heads="dspark",
    optional=True,
)  # fmt: skip
OWN: Mapping[str, DrafterKind] = {
    k.name: k for k in (LOOKUP, MODEL, MTP, MIMO, EAGLE3, DFLASH, DSPARK)
}


NamedKind = tuple[DrafterKind, str]
"""A kind, and its argument."""


def find_kinds(draft: str, others: Sequence[DrafterKind] = ()) -> dict[str, NamedKind]:
    """Return the kinds that a `--draft` other than `off` names, each by the words that name it.

    Parameters
    ----------
    others : kinds that plugins bring.

    Raises
    ------
    RequestError : there is no such kind, or it takes an argument that is missing, or none.
    """
    kinds = {**OWN, **{kind.name: kind for kind in others}}
    words = list[str]()
    for piece in draft.split(","):
        name = piece.strip()
        if name.partition(":")[0] in {AUTO, *kinds}:
            words.append(name)
        elif words and ":" in words[-1]:
            words[-1] += f",{piece}"  # of a path
        else:
            words.append(name)
    found = {word: _find_kind(word, kinds) for word in words}
    _check_once(found)
    return found


def _check_once(found: Mapping[str, NamedKind]) -> None:
    """Refuse a kind with two arguments: statistics and turns know drafters by their kinds."""
    words = dict[str, str]()
    for word, (kind, argument) in found.items():
        before = words.setdefault(kind.name, word)
        if argument and before != word:
            what = f"{before} and {word} are two drafters of one kind"
            raise RequestError(what, where="draft", hint=f"draft with one {kind.name} at a time")


def _find_kind(draft: str, kinds: Mapping[str, DrafterKind]) -> NamedKind:
    name, colon, argument = draft.partition(":")
    kind = LOOKUP if name == AUTO else kinds.get(name)
    if kind is None:
        alone = f"the drafter {OFF} stands alone: it is none"
        raise RequestError(
            alone if name == OFF else f"there is no drafter {shown(name)}",
            where="draft",
            hint=", ".join([OFF, AUTO, *map(usage, kinds.values())]),
        )
    missing = not argument and (colon or not kind.optional)
    if (kind.argument and missing) or (argument and not kind.argument) or (colon and not argument):
        raise RequestError(
            f"the drafter {name} takes {'an' if kind.argument else 'no'} argument",
            where="draft",
            hint=AUTO if name == AUTO else usage(kind),
        )
    return kind, argument


def kinds_for(found: Mapping[str, NamedKind], target: DraftTarget) -> list[NamedKind]:
    """Return the kinds; for `auto` those of the model's draft head and block drafter, where it was
    loaded with them, and separate lookups: copies are noticed while a useless head rests.
    """
    facts = target.executable.program.facts
    own = [(OWN[facts["draft_head"].name], "")] if "draft_head" in facts else []
    own += [(OWN[facts["block_drafter"].name], "")] if "block_drafter" in facts else []
    chosen = list[NamedKind]()
    for word, kind in found.items():
        wanted = [*own, kind] if word == AUTO else [kind]
        chosen += [one for one in wanted if one[0] not in (known for known, _ in chosen)]
    return chosen


def usage(kind: DrafterKind) -> str:
    """Return how a kind is named, with its argument."""
    if kind.optional:
        return f"{kind.name}[:{kind.argument}]"
    return f"{kind.name}:{kind.argument}" if kind.argument else kind.name


def speculation(
    found: Mapping[str, NamedKind], depth: int | None, target: DraftTarget
) -> Speculation:
    """Make the drafter and policy of a model's sequences; several kinds take turns."""
    several = kinds_for(found, target)
    return in_turns(
        [
            Speculation(_made(kind, target, argument), kind.policies(depth, len(several)))
            for kind, argument in several
        ]
    )


def _made(kind: DrafterKind, target: DraftTarget, argument: str) -> Drafter:
    """Make the drafter of a kind, which may be a plugin's; RequestError if that fails."""
    try:
        drafter = kind.make(target, argument)
        drafter.open, drafter.name  # noqa: B018 raises where it is no drafter
    except CortiqError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        what = f"the drafter {kind.name} makes none for {shown(argument)}: {reason}"
        raise RequestError(what, where="draft", hint=usage(kind)) from error
    return drafter
