"""Facts about a model: who computes it, its context, hashes and end tokens."""

from __future__ import annotations

from collections.abc import Mapping

from cortiq.backend import Executable
from cortiq.ir import Program
from cortiq.model.fingerprint import fingerprint, model_facts
from cortiq.model.source import ModelSource
from cortiq.tokenizer.tokenizer import Tokenizer


class ModelFacts:
    """The facts of `Model`."""

    executable: Executable
    program: Program
    tokenizer: Tokenizer
    _source: ModelSource

    @property
    def placement(self) -> Mapping[str, str]:
        """Backend of each node, by name of the node."""
        return self.executable.placement

    @property
    def declined(self) -> Mapping[str, str]:
        """Nodes that the backend declined and the reference computes, each with the reason."""
        from cortiq.placement.place import declined_nodes

        return declined_nodes(self.executable)

    @property
    def context(self) -> int:
        """The longest sequence, prompt and answer together, in tokens."""
        return self.program.context

    @property
    def model_hash(self) -> str:
        """SHA-256, in hex, of the model's files (or of a synthetic model's definition)."""
        return self._source.model_hash()

    @property
    def fingerprint(self) -> str:
        """Hash of everything that decides the logits of given token ids (`fingerprint.py`)."""
        return fingerprint(model_facts(self.program, self.model_hash))

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The model's own end tokens: those of its files and of its tokenizer."""
        return tuple(sorted({*self._source.eos_ids, *self.tokenizer.eos_ids}))
