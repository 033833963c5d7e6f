"""Cached prefixes of a model: prompts that begin like an earlier one reuse its rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from cortiq.arguments import path_of
from cortiq.backend import ExportedState
from cortiq.engine.cache_roles import CacheRole
from cortiq.engine.overlay import ChosenOverlay, key_of, session_inputs
from cortiq.engine.prefix_file import first_difference, read_prefix, write_prefix
from cortiq.engine.prefixes import PrefixCache
from cortiq.engine.request import check_prompt
from cortiq.engine.session import Session
from cortiq.errors import FormatError, RequestError, shown
from cortiq.ir.encoded import most_rows
from cortiq.model.fingerprint import adapter_facts, fingerprint
from cortiq.model.hearing import SoundPrompt
from cortiq.model.sight import ImagePrompt

if TYPE_CHECKING:
    from cortiq.model.model import Model
    from cortiq.model.prompts import TextPrompt

CHUNK_ROWS = 256


class PrefixCacheMixin:
    """The prefix cache of `Model`. No token depends on what is cached.

    Attributes
    ----------
    prefixes : kept sequences; None until `keep_prefixes` or `load_prefix` is called.
    """

    prefixes: PrefixCache | None = None

    def keep_prefixes(self, count: int = 8, nbytes: int | None = None) -> PrefixCache:
        """Cache up to `count` finished sequences, for prompts that begin like them.

        Parameters
        ----------
        nbytes : memory they may take, None for no limit but the backend's own.

        Raises
        ------
        RequestError : either is no integer of at least 1.
        """
        for name, value in (("count", count), ("nbytes", 1 if nbytes is None else nbytes)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                what = f"{name} must be an integer of at least 1, not {shown(value)}"
                raise RequestError(what, where="keep_prefixes")
        self.drop_prefixes()
        self.prefixes = PrefixCache(cast("Model", self).executable, count, nbytes)
        return self.prefixes

    def drop_prefixes(self) -> None:
        """Free cached sequences, and cache no more."""
        if self.prefixes is not None:
            self.prefixes.clear()
        self.prefixes = None

    def save_prefix(
        self, prompt: TextPrompt, path: str | Path, *, adapter: str | None = None
    ) -> int:
        """Compute a prompt's rows and write them to a file; return their number.

        Parameters
        ----------
        adapter : the one to compute them with.

        Raises
        ------
        RequestError : the prompt cannot be served, or the file not be written, or there is no such
            adapter.
        """
        file = path_of(path, "save_prefix")
        if isinstance(prompt, ImagePrompt | SoundPrompt):
            what = "a prompt with images or sounds, whose rows are no file's"
            raise RequestError(what, where="save_prefix", hint="give a text or its ids")
        model = cast("Model", self)
        ids = check_prompt(model.ids(prompt), model.program)
        overlay = model.adapters.named(adapter)
        with model._working():
            write_prefix(file, self._computed(ids, overlay), self._prefix_of(overlay))
        return len(ids)

    def _prefix_of(self, overlay: ChosenOverlay | None) -> str:
        """Return the fingerprint of rows: of the model, and of the adapter if there is one."""
        own = cast("Model", self).fingerprint
        return own if overlay is None else fingerprint({"model": own, **adapter_facts(overlay)})

    def _computed(self, ids: Sequence[int], overlay: ChosenOverlay | None) -> ExportedState:
        """Compute the rows of some ids."""
        model = cast("Model", self)
        model.adapters.sync(overlay)
        given = None if overlay is None else [session_inputs(overlay)] * CHUNK_ROWS
        with Session(model.executable, len(ids)) as session:
            for start in range(0, len(ids), CHUNK_ROWS):
                some = ids[start : start + CHUNK_ROWS]
                session.read_rows(session.feed_each(some, [()] * len(some), given))
            return session.state.export()

    def load_prefix(
        self, path: str | Path, *, check: bool = False, adapter: str | None = None
    ) -> list[int]:
        """Load a prefix that `save_prefix` wrote, on whatever backend; return its ids.

        Parameters
        ----------
        check : compute the prefix again, and compare every bit. Without it the file is believed:
            whoever wrote it decides what the model takes those tokens for.
        adapter : the one that it was computed with, and is for.

        Raises
        ------
        FormatError : no such file, or it is damaged; with `check`, or not what the model computes.
        RequestError : it is of another model, or was loaded with other options that decide bits.
        """
        model, file = cast("Model", self), path_of(path, "load_prefix")
        overlay = model.adapters.named(adapter)
        exported = read_prefix(file, model.program, self._prefix_of(overlay))
        ids = exported.tokens.tolist()
        if check:
            with model._working():
                differs = first_difference(exported, self._computed(ids, overlay))
            if differs:
                what = f"is not what the model computes of its tokens: {differs!r} differs"
                hint = "do not use it; save the prefix again"
                raise FormatError(what, where=str(file), hint=hint)
        # An empty cache is false, and is the caller's all the same.
        prefixes = self.keep_prefixes() if self.prefixes is None else self.prefixes
        with model._working():
            state = model.executable.import_(exported, most_rows(model.program))
            prefixes.put(ids, state, CacheRole.FILE, key_of(overlay))
        return ids
