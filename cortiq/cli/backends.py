"""`cortiq backends`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from cortiq.cli.render import echo, print_json, print_table

if TYPE_CHECKING:
    from cortiq.backend import Backend
    from cortiq.plugins import Plugins


@click.command()
@click.option("--all", "every", is_flag=True, help="List every device, however many there are.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def backends(every: bool, as_json: bool) -> None:
    """List backends and their devices.

    The first available one is the default. Plugins that could not be loaded are listed below.
    """
    from cortiq.plugins import default_plugins

    plugins = default_plugins()
    found = [_facts(backend, plugins) for backend in plugins.backends.values()]
    problems = [{"plugin": p.name, "problem": p.sentence} for p in plugins.problems]
    if as_json:
        print_json({"backends": found, "problems": problems})
        return
    reasons = {facts["name"]: facts["unavailable"] for facts in found if facts["unavailable"]}
    headings = ("backend", "device", "description", "priority", "contract", "from")
    print_table(headings, (row for facts in found for row in _rows(facts, every)))
    for name, reason in reasons.items():
        echo(f"not available: {name}: {reason}")
    for problem in problems:
        echo(f"not loaded: {problem['plugin']}: {problem['problem']}")
    if not found:
        from cortiq.plugins.extras import install_command

        echo(f"no backend is installed; {install_command('cortiq-reference')} installs one")


def _facts(backend: Backend, plugins: Plugins) -> dict[str, Any]:
    from cortiq.plugins import availability

    devices, reason = availability(backend)
    return {
        "name": backend.name,
        "priority": backend.priority,
        "contract": backend.versions.contract,
        "from": plugins.sources.get(plugins.brought_by.get(backend.name, ""), ""),
        "devices": [{"name": d.name, "description": d.description} for d in devices],
        "unavailable": reason,
    }


def _rows(facts: dict[str, Any], every: bool) -> Iterator[tuple[str, ...]]:
    from cortiq.plugins.selection import MOST_LISTED

    tail = (str(facts["priority"]), str(facts["contract"]), facts["from"])
    if facts["unavailable"] is not None:
        yield facts["name"], "-", "not available: see below", *tail
    count = len(facts["devices"])
    if count > MOST_LISTED and not every:
        yield facts["name"], f"({count})", "cortiq backends --all lists the devices", *tail
        return
    for device in facts["devices"]:
        yield facts["name"], device["name"], device["description"], *tail
