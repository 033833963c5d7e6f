"""Generation whose skill changes while text is written: by a plan, or by the running features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from cortiq.backend import Argmax, Named, Want
from cortiq.engine.session import DIGEST, RowResult, Session, digest_of
from cortiq.errors import RequestError
from cortiq.ir.overlays import overlay_inputs
from cortiq.model.model import Model
from cortiq.numerics.contract import Floats
from cortiq_skills.features import RunningFeatures, layer_value
from cortiq_skills.record import SkillSelection
from cortiq_skills.router import error_of, is_alike

Words = tuple[int, int, int, int]
MODES = ("rerun", "keep")


@dataclass(frozen=True)
class Hysteresis:
    """When a skill is taken, left, and given up for another, by relative error.

    Attributes
    ----------
    on : an error below it takes a skill. off : one above it leaves it. margin : by so much another
        has to be better. period : tokens between two looks.
    """

    on: float = 0.62
    off: float = 0.74
    margin: float = 0.03
    period: int = 8

    def step(self, active: str | None, errors: Mapping[str, float]) -> str | None:
        """Return the skill after a look; of equal errors the earlier skill is the better."""
        if not errors:
            return active
        best = min(errors, key=errors.__getitem__)
        if active is None:
            return best if errors[best] < self.on else None
        own = errors.get(active, float("inf"))
        if own > self.off:
            return best if errors[best] < self.on else None
        return best if best != active and errors[best] + self.margin < own else active


class Chooser(Protocol):
    """A choice of the skill behind each token."""

    layer: int | None

    def choose(self, step: int, active: str | None, features: Floats | None) -> str | None:
        """Return the skill from the next token on.

        Parameters
        ----------
        step : tokens generated so far. features : running average of the layer's rows.
        """
        ...


@dataclass
class PlannedSwitches:
    """Skills by the number of tokens that are there when they begin."""

    plan: Mapping[int, str | None]
    layer: int | None = None

    def choose(self, step: int, active: str | None, features: Floats | None) -> str | None:
        """Return the skill that the plan has here."""
        return self.plan.get(step, active)


@dataclass
class Swarm:
    """Skills of one layer and metric, chosen by the running features with hysteresis.

    Attributes
    ----------
    selections : by name of the loaded adapter. last : errors of the last look.
    """

    selections: Mapping[str, SkillSelection]
    rule: Hysteresis = field(default_factory=Hysteresis)
    last: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.selections or not is_alike(self.selections.values()):
            what = "takes skills with descriptors of one layer and one metric"
            raise RequestError(what, where="skill.swarm")
        self.layer: int | None = next(iter(self.selections.values())).layer

    def choose(self, step: int, active: str | None, features: Floats | None) -> str | None:
        """Return the skill after a token."""
        if not step or step % self.rule.period or features is None:
            return active
        self.last = {n: error_of(one, features)[1] for n, one in self.selections.items()}
        return self.rule.step(active, self.last)


@dataclass(frozen=True)
class SwitchedText:
    """A text whose skill changed.

    Attributes
    ----------
    switches : tokens generated before each change, the skill before, and the one after.
    active : the skill whose logits each token was drawn from. step_digests : of these logits.
    mode : what became of the rows before a change (`generate_switching`).
    """

    text: str
    token_ids: tuple[int, ...]
    switches: tuple[tuple[int, str | None, str | None], ...]
    active: tuple[str | None, ...]
    step_digests: tuple[Words, ...]
    mode: str


def generate_switching(
    model: Model,
    prompt: Sequence[int],
    chooser: Chooser,
    *,
    max_tokens: int = 64,
    mode: str = "rerun",
    ignore_eos: bool = False,
) -> SwitchedText:
    """Generate greedily, from the model without a skill on, with skills as a chooser says.

    Parameters
    ----------
    prompt : token ids.
    mode : "rerun" computes all rows again under the new skill, whose text then is what it would be
        from there; "keep" keeps keys and values of the rows before, which costs nothing.

    Raises
    ------
    RequestError : a skill is not loaded as an adapter, or the mode is none.
    """
    if mode not in MODES or max_tokens < 1 or not prompt:
        what = f"takes a prompt, at least a token, and a mode of {', '.join(MODES)}"
        raise RequestError(what, where="skill.switching")
    run = _SwitchedRun(model, list(prompt), chooser, mode, max_tokens)
    ends = () if ignore_eos else model.eos_ids
    try:
        run.feed(run.ids)
        while not run.done(max_tokens, ends):
            run.step()
    finally:
        run.close()
    made = tuple(run.ids[len(prompt) :])
    return SwitchedText(
        model.tokenizer.decode(list(made)),
        made,
        tuple(run.switches),
        tuple(run.drawn_by),
        tuple(run.digests),
        mode,
    )


class _SwitchedRun:
    """A sequence whose rows choose skills."""

    def __init__(
        self, model: Model, ids: list[int], chooser: Chooser, mode: str, max_tokens: int
    ) -> None:
        self.model, self.ids, self.chooser, self.mode = model, ids, chooser, mode
        self.prompt, self.limit = len(ids), len(ids) + max_tokens
        self.active: str | None = None
        self.switches: list[tuple[int, str | None, str | None]] = []
        self.drawn_by: list[str | None] = []
        self.digests: list[Words] = []
        self.features = RunningFeatures()
        program = model.executable.program
        layer = chooser.layer
        self.row: Named | None = None if layer is None else Named(layer_value(program, layer))
        self.wants: tuple[Want, ...] = (Argmax(), DIGEST, *([self.row] if self.row else []))
        for listed in model.adapters.listed:  # banks hold all of them from here on
            model.adapters.sync(model.adapters.named(listed.name))
        self.session = Session(model.executable, self.limit)
        self.next, self.digest = 0, (0, 0, 0, 0)

    def done(self, max_tokens: int, ends: Sequence[int]) -> bool:
        """Check whether the text has ended."""
        count = len(self.ids) - self.prompt
        return count == max_tokens or (count > 0 and self.ids[-1] in ends)

    def _given(self) -> Mapping[str, Any]:
        overlay = self.model.adapters.named(self.active)
        if overlay is None:
            return overlay_inputs(0) if self.model.executable.varied else {}  # type: ignore[attr-defined]
        return overlay_inputs(overlay.number)

    def feed(self, ids: Sequence[int], observe: bool = True) -> None:
        """Feed ids under the active skill; note what the last row draws, and the rows' features."""
        size = max(1, self.model.executable.batch_rows)
        for at in range(0, len(ids), size):
            part = list(ids[at : at + size])
            given = [self._given()] * len(part)
            pending = self.session.feed_each(part, [self.wants] * len(part), given)
            rows: Sequence[RowResult] = self.session.read_rows(pending)
            if observe and self.row is not None:
                for row in rows:
                    self.features.add(row[self.row])
            self.next, self.digest = int(rows[-1][Argmax()]), digest_of(rows[-1])

    def step(self) -> None:
        """Draw a token and feed it, after a change of the skill if there is one."""
        step = len(self.ids) - self.prompt
        chosen = self.chooser.choose(step, self.active, self.features.value)
        if chosen != self.active:
            self._switch(step, chosen)
        self.drawn_by.append(self.switches[-1][1] if self._late(step) else self.active)
        self.digests.append(self.digest)
        self.ids.append(self.next)
        self.feed([self.next])

    def _late(self, step: int) -> bool:
        """Check whether this token's logits were there before the change."""
        return self.mode == "keep" and bool(self.switches) and self.switches[-1][0] == step

    def _switch(self, step: int, chosen: str | None) -> None:
        self.model.adapters.named(chosen)  # refuses what is not loaded
        self.switches.append((step, self.active, chosen))
        self.active = chosen
        if self.mode == "rerun":
            self.close()
            self.session = Session(self.model.executable, self.limit)
            self.feed(self.ids, observe=False)

    def close(self) -> None:
        """Release the sequence."""
        self.session.__exit__(None)
