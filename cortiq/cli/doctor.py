"""`cortiq doctor`."""

from __future__ import annotations

import os
import platform
import sys
from typing import TYPE_CHECKING, Any

import click

from cortiq.cli.render import byte_count, echo, note, print_json, print_table
from cortiq.errors import brief

if TYPE_CHECKING:
    from cortiq.model.backend_check import BackendCheck

SECRETS = ("KEY", "TOKEN", "SECRET", "PASSWORD")
NOTHING_WORKS = 1
"""Exit code when no backend works."""


@click.command()
@click.option("--no-trial", is_flag=True, help="Run no backend.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def doctor(ctx: click.Context, no_trial: bool, as_json: bool) -> None:
    """Show what this machine can run, and how to fix what does not run.

    Every installed backend generates a few tokens, and its bits are compared with the reference's.
    Exits with 1 if none works.
    """
    facts = machine_report(trial=not no_trial)
    if as_json:
        print_json(facts)
    else:
        _print(facts)
    if not any(backend["works"] is not False for backend in facts["backends"]):
        ctx.exit(NOTHING_WORKS)


def machine_report(*, trial: bool) -> dict[str, Any]:
    """Return everything that `doctor` reports, as a JSON object."""
    import cortiq
    from cortiq.formats.cache import models_folder
    from cortiq.formats.fetch import list_cached, partial_downloads
    from cortiq.model import machine
    from cortiq.model.backend_check import check_backends
    from cortiq.plugins import default_plugins
    from cortiq.plugins.extras import extras

    plugins, memory = default_plugins(), machine.memory()
    return {
        "cortiq": cortiq.__version__,
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "processor": machine.processor(),
        "memory": memory,
        "room_billions": machine.room_for(memory["free"]) if memory["free"] else {},
        "cache": machine.disk(models_folder()),
        "models": list(list_cached()),
        "unfinished": partial_downloads(),
        "backends": [_facts(made) for made in check_backends(plugins, run=trial)],
        "problems": [{"plugin": p.name, "problem": p.sentence} for p in plugins.problems],
        "extras": [
            {"name": e.name, "packages": e.packages, "mend": e.command if e.missing else None}
            for e in extras()
        ],
        "environment": {k: _shown(k, v) for k, v in os.environ.items() if k.startswith("CORTIQ_")},
    }


def _shown(name: str, value: str) -> str:
    """Return a variable's value, masked if it is a secret: reports are shared."""
    return "(set)" if any(word in name for word in SECRETS) else value


def _facts(made: BackendCheck) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(made)


def _print(facts: dict[str, Any]) -> None:
    echo(f"cortiq {facts['cortiq']} on Python {facts['python']}, {facts['platform']}")
    cpu, memory, cache = facts["processor"], facts["memory"], facts["cache"]
    echo(f"processor  {cpu['name']}, {cpu['cores']} cores: {' '.join(cpu['features'])}")
    echo(f"memory     {_bytes(memory['total'])}, {_bytes(memory['free'])} free")
    if facts["room_billions"]:
        rooms = ", ".join(f"{n:.0f} billion at {b}" for b, n in facts["room_billions"].items())
        echo(f"room for   about {rooms} of a weight")
    written = "" if cache["writable"] else "; NOT WRITABLE: set CORTIQ_CACHE to another folder"
    echo(f"cache      {cache['folder']}, {_bytes(cache['free'])} free{written}")
    echo(f"models     {', '.join(facts['models']) or 'none yet: cortiq pull smollm2'}")
    for name, value in facts["environment"].items():
        echo(f"variable   {name}={value}")
    echo()
    headings = ("backend", "device", "state", "description", "from")
    print_table(headings, [_row(backend) for backend in facts["backends"]])
    _print_problems(facts)
    echo()
    rows = [(e["name"], _packages(e), e["mend"] or "installed") for e in facts["extras"]]
    print_table(("extra", "packages", "to install"), rows)


def _row(backend: dict[str, Any]) -> tuple[str, ...]:
    state = {None: "not tried", True: "works", False: "does not work"}[backend["works"]]
    if backend["same"] is not None:
        state = "works, same bits" if backend["same"] else "OTHER BITS"
    if backend["seconds"] is not None:
        state += f" ({backend['seconds']:.2f} s)"
    device = backend["device"] or "-"
    return backend["backend"], device, state, backend["description"], backend["source"]


def _print_problems(facts: dict[str, Any]) -> None:
    for backend in facts["backends"]:
        if backend["problem"] is not None:
            echo(f"{backend['backend']}: {brief(backend['problem'])}")
        if backend["mend"] is not None:
            echo(f"  try: {backend['mend']}")
    for problem in facts["problems"]:
        echo(f"not loaded: {problem['plugin']}: {problem['problem']}")
    if not facts["backends"]:
        from cortiq.plugins.extras import install_command

        note(f"no backend is installed; {install_command('cortiq-reference')} installs one")


def _packages(extra: dict[str, Any]) -> str:
    return ", ".join(f"{name} {v or 'missing'}" for name, v in extra["packages"].items())


def _bytes(number: int | None) -> str:
    return "unknown" if number is None else byte_count(number)
