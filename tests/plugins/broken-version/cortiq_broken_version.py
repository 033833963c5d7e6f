"""A backend whose bits are those of another contract."""

from __future__ import annotations

from cortiq.backend import Versions
from cortiq.hookspecs import hookimpl


class FromTheFuture:
    """Complete, but built for contract 99."""

    name, priority, versions = "future", 100, Versions(contract=99)

    def devices(self) -> list:
        """Never asked."""
        raise AssertionError

    def supports(self, node: object, graph: object, program: object) -> object:
        """Never asked."""
        raise AssertionError

    def compile(self, program: object, weights: object, options: object) -> object:
        """Never asked."""
        raise AssertionError


@hookimpl
def cortiq_backends() -> list:
    """The backend."""
    return [FromTheFuture()]
