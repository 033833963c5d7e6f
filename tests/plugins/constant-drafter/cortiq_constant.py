"""A drafter from outside: it drafts one token, given behind the colon, as often as is wanted."""

from __future__ import annotations

from cortiq.hookspecs import hookimpl


@hookimpl
def cortiq_drafters() -> list:
    from cortiq.engine.drafters.kinds import DrafterKind
    from cortiq.engine.drafters.scripted import ScriptedDrafter

    def make(target: object, argument: str) -> ScriptedDrafter:
        return ScriptedDrafter(lambda ids, count: [int(argument)] * count, "constant")

    return [DrafterKind("constant", "one token again and again", make, "TOKEN")]
