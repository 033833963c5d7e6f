"""The drafters of one model: made when they are first asked for, kept with what they learnt."""

from __future__ import annotations

from collections.abc import Mapping
from os.path import realpath
from typing import TYPE_CHECKING

from cortiq.backend import Executable
from cortiq.engine.drafters.kinds import (
    AUTO,
    OFF,
    NamedKind,
    find_kinds,
    speculation,
)
from cortiq.engine.drafters.model import check_vocabularies
from cortiq.engine.drafting import Speculation
from cortiq.errors import RequestError
from cortiq.ir.heads import DFLASH, DSPARK
from cortiq.models.head_names import BLOCKS, split_heads_option
from cortiq.options import GenerateOptions, LoadOptions
from cortiq.plugins import default_plugins
from cortiq.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from cortiq.model.model import Model


class DrafterFactory:
    """Makes a model's drafters; closes the draft models it opened."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._opened: dict[str, Model] = {}
        self._made: dict[tuple[str, int | None], Speculation] = {}

    @property
    def executable(self) -> Executable:
        """The compiled model to draft for."""
        return self._model.executable

    def speculation(self, options: GenerateOptions) -> Speculation | None:
        """Return drafter and policy of a generation with these options; None for no drafting.

        Raises
        ------
        RequestError : the drafter is unknown, or cannot draft for this model.
        """
        found = drafters_named(options)
        if found is None:
            return None
        _check_files(found, self._model.options)
        key = options.draft, options.draft_depth
        if key not in self._made:
            self._made[key] = speculation(found, options.draft_depth, self)
        return self._made[key]

    def draft_model(self, name: str) -> Executable:
        """Open another model on the same backend, whose ids mean the same text."""
        if name not in self._opened:
            self._opened[name] = self._open(name)
        return self._opened[name].executable

    def _open(self, name: str) -> Model:
        from cortiq.model.load import load

        model = self._model
        threads = model.options.threads
        given = model.options.backend
        backend = model.backend if given is None or isinstance(given, str) else given
        opened = load(name, backend=backend, device=model.device, threads=threads)
        try:
            check_vocabularies(opened.executable, model.executable)
            _check_texts(opened.tokenizer, model.tokenizer)
        except BaseException:
            opened.close()
            raise
        return opened

    def close(self) -> None:
        """Close the draft models."""
        for model in self._opened.values():
            model.close()
        self._opened, self._made = {}, {}


def drafters_named(options: GenerateOptions) -> Mapping[str, NamedKind] | None:
    """Return the drafters that options name, with arguments; None for none. No model is needed.

    Raises
    ------
    RequestError : there is no such drafter, it takes another argument, or a depth is all there is.
    """
    if options.draft == OFF:
        _check_no_depth(options)
        return None
    return find_kinds(options.draft, default_plugins().drafters)


def _check_files(found: Mapping[str, NamedKind], options: LoadOptions) -> None:
    """Refuse another head or block drafter than the one that the model was loaded with."""
    loaded = split_heads_option(options.heads)[1]
    for kind, path in found.values():
        mine = loaded.get(kind.heads, "")
        if path and not mine and kind.heads == DSPARK:  # the model's own file may have another
            what = f"the model was loaded without the block drafter {path}"
            raise RequestError(what, where="draft", hint=f"load it with heads='{DSPARK}:{path}'")
        if mine and (path or not kind.optional) and realpath(path) != realpath(mine):
            what = "block drafter" if kind.heads in BLOCKS else "head"
            raise RequestError(
                f"the model was loaded with the {what} {mine}, not {path}",
                where="draft",
                hint=f"draft with {kind.heads}:{mine}, or load it with heads='{kind.heads}:{path}'",
            )


def heads_of(draft: str | None) -> str | None:
    """Return the draft head that a model must be loaded with for this option, if any."""
    if draft in (None, OFF):
        return None
    found = find_kinds(str(draft), default_plugins().drafters)
    files = {kind.heads: f"{kind.heads}:{path}" for kind, path in found.values() if path}
    heads = {AUTO if word == AUTO else kind.heads: kind for word, (kind, _) in found.items()}
    blocks = [files[name] for name in BLOCKS if name in files]
    named = [n for n in heads if n not in ("", AUTO, DFLASH) and (n != DSPARK or n not in files)]
    if len(named) > 1:
        what = f"a model is loaded with one draft head, not with {' and '.join(named)}"
        raise RequestError(what, where="draft", hint=f"draft with one of them, or with {AUTO}")
    own = [files.get(name, name) for name in named or [AUTO] * (AUTO in heads)]
    return ",".join([*own, *blocks]) or None


def _check_no_depth(options: GenerateOptions) -> None:
    if options.draft_depth is not None:
        raise RequestError(
            "a draft depth without a drafter",
            where="draft_depth",
            hint=f"draft is {OFF}; auto or lookup draft without another model",
        )


def _check_texts(draft: Tokenizer, target: Tokenizer) -> None:
    """Refuse a draft model some of whose ids stand for another text."""
    if draft.absent or target.absent:
        return
    for token in range(min(draft.vocab_size, target.vocab_size)):
        ours, theirs = target.token_bytes(token), draft.token_bytes(token)
        if ours != theirs:
            raise RequestError(
                f"the draft model's token {token} is {theirs!r}, the model's is {ours!r}",
                where="draft",
                hint="draft with a model of the same family and tokenizer",
            )
