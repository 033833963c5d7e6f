"""Answers that must be of a form: a JSON schema, or a tool call, as masks of the sampler.

The grammar library is llguidance. A grammar decides which tokens exist for a draw, and the draw is
the contract's: so an answer under a grammar is the same on every backend too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any

from cortiq.errors import shown
from cortiq.numerics.masks import Mask, mask_of
from cortiq.serve.errors import ApiError, invalid
from cortiq.serve.schemas import moved, of_objects
from cortiq.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

SPACES = {"x-guidance": {"whitespace_pattern": r"[ \n\t]{1,20}"}}
"""White space between the parts of a JSON text is bounded: a small model may write nothing else."""


MOST_GRAMMAR = 1 << 16
"""Longest grammar in characters; the library takes seconds for one of twice the size."""
MOST_SHOWN = 200
DEAD_END = "NoExtension"
"""What the library calls the end of a schema such as one that refers to nothing but itself."""


class Grammars:
    """The grammars of one model.

    Parameters
    ----------
    vocabulary : how many tokens the model has logits for.
    eos_ids : tokens that end an answer, which a grammar allows where the text may end.
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary: int, eos_ids: Sequence[int]) -> None:
        self.tokenizer, self.vocabulary, self.eos_ids = tokenizer, vocabulary, list(eos_ids)
        self._lock = Lock()

    @cached_property
    def _tokens(self) -> LLTokenizer:
        from llguidance import LLTokenizer, TokenizerWrapper

        wrapped = _Wrapped(self.tokenizer, self.vocabulary)
        return LLTokenizer(TokenizerWrapper(wrapped), eos_token=self.eos_ids)

    def compiled(self, grammar: str, param: str) -> LLMatcher:
        """A grammar, at its beginning; ApiError (400) where it is none, or asks for what the
        library would leave out.
        """
        from llguidance import LLMatcher

        if not self.eos_ids or self.tokenizer.absent:
            raise invalid("The model has no end token, which a grammar needs.", param)
        if len(grammar) > MOST_GRAMMAR:
            why = f"its grammar has {len(grammar)} characters, more than {MOST_GRAMMAR}"
            raise cannot_be_followed(why, param)
        with self._lock:
            tokens = self._tokens
        wrong, complaints = LLMatcher.validate_grammar_with_warnings(grammar, tokens)
        if wrong or complaints:
            raise cannot_be_followed(complaints[0].splitlines()[0], param)
        made = LLMatcher(tokens, grammar, log_level=0)
        first = made.deep_copy()
        first.compute_bitmask()  # a reference to itself is found no earlier
        if first.is_error():
            raise cannot_be_followed(reason(first), param)
        return made

    def of_schema(self, schema: Mapping[str, Any]) -> str:
        """The grammar of JSON texts that a schema describes."""
        return f"start: %json {json.dumps({**schema, **SPACES})}"

    def of_calls(self, schemas: Mapping[str, Mapping[str, Any]], wrap: tuple[str, str]) -> str:
        """The grammar of one tool call.

        Parameters
        ----------
        schemas : JSON schemas of the arguments, by name of the tool.
        wrap : text around the call's object.
        """
        calls = [_call_schema(*each, number) for number, each in enumerate(schemas.items())]
        before, after = (self._literal(text) for text in wrap)
        return f"start: {before} call {after}\ncall: %json {json.dumps({'anyOf': calls, **SPACES})}"

    def _literal(self, text: str) -> str:
        """A text in a grammar; its control tokens by id."""
        parts: list[str] = []
        plain: list[int] = []
        tokenizer = self.tokenizer
        for token in [*tokenizer.encode(text, add_bos=False, parse_special=True), None]:
            if token is not None and not tokenizer.is_special(token):
                plain.append(token)
                continue
            if plain:
                parts.append(json.dumps(tokenizer.decode(plain, continuation=True)))
                plain = []
            if token is not None:
                parts.append(f"<[{token}]>")
        return " ".join(parts)


def _call_schema(name: str, schema: Mapping[str, Any], number: int = 0) -> dict[str, Any]:
    """The schema of a call of one tool, at place `number` of the calls there are."""
    arguments = of_objects(schema)
    if arguments is None:
        message = f"'tools': the parameters of {shown(name)} are of no object: no call has such."
        raise invalid(message, "tools", "invalid_schema")
    pointer = f"#/anyOf/{number}/properties/arguments"
    return {
        "type": "object",
        "properties": {"name": {"const": name}, "arguments": moved(arguments, pointer)},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


class _Wrapped:
    """A tokenizer as the grammar library takes them, with as many ids as the model has."""

    def __init__(self, tokenizer: Tokenizer, size: int) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id, self.bos_token_id = tokenizer.eos_id, None
        self.tokens = [tokenizer.token_bytes(token) for token in range(size)]
        self.special_token_ids = [t for t in range(size) if tokenizer.is_special(t)]

    def __call__(self, text: bytes | str) -> list[int]:
        shown = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        return self._tokenizer.encode(shown, add_bos=False)


class GrammarMasks:
    """The masks of one choice (`engine.request.Masks`): they depend on the ids alone.

    Parameters
    ----------
    prompt : its length; the grammar holds for what comes after it.
    opened, opens, closes : whether the prompt opened a thinking block, and its markers; the grammar
        begins after the block. A block that the model itself may open needs a marker of one token.

    Attributes
    ----------
    fault : what the library could not go on with, empty for nothing. The answer then ends, and who
        asked for it gets an error.
    """

    def __init__(
        self,
        grammars: Grammars,
        matcher: LLMatcher,
        prompt: int,
        opened: bool = False,
        opens: str = "",
        closes: str = "",
    ) -> None:
        self.grammars, self.fault = grammars, ""
        self._matcher, self._prompt, self._opened, self._closes = matcher, prompt, opened, closes
        ids = grammars.tokenizer.encode(opens, add_bos=False, parse_special=True) if opens else []
        self._opens = ids[0] if len(ids) == 1 and closes else None
        self._taken: list[int] = []
        self._thought: list[int] = []  # ids looked at for the closing marker, up to it
        self._tail = b""  # and their last bytes

    def __call__(self, ids: Sequence[int]) -> Mask | None:
        """The mask of the token after these ids; None while the model thinks."""
        made = list(ids[self._prompt :])
        opened = self._opened or (bool(made) and made[0] == self._opens)
        start = self._after_thinking(made) if opened else 0
        if start is None:
            return None
        mask = self._mask(made[start:])
        if not made and not opened and self._opens is not None:
            mask = _with(mask, self._opens)
        return mask

    def _after_thinking(self, made: Sequence[int]) -> int | None:
        """Where the grammar begins; None while the block goes on."""
        thought, closes = self._thought, self._closes.encode()
        if made[: len(thought)] != thought:
            thought, self._tail = [], b""
        for token in made[len(thought) :]:
            if closes in self._tail:
                break
            thought.append(token)
            kept = max(0, len(self._tail) - len(closes) + 1)
            self._tail = self._tail[kept:] + self.grammars.tokenizer.token_bytes(token)
        self._thought = thought
        return len(thought) if closes in self._tail else None

    def _mask(self, made: Sequence[int]) -> Mask:
        """Bring the matcher to these tokens, which it may have to go back for, and ask it."""
        matcher = self._matcher
        same = 0
        while same < min(len(made), len(self._taken)) and made[same] == self._taken[same]:
            same += 1
        if same < len(self._taken):
            matcher.rollback(len(self._taken) - same)
        if same < len(made):
            matcher.consume_tokens(list(made[same:]))
        self._taken = list(made)
        mask = matcher.compute_bitmask()
        if matcher.is_error():
            self.fault = reason(matcher)
            return mask_of(self.grammars.eos_ids, self.grammars.vocabulary)
        return bytes(mask).ljust(-(-self.grammars.vocabulary // 8), b"\0")


def cannot_be_followed(why: str, param: str) -> ApiError:
    """Return the error of a schema, or of tools, that no answer can be made to follow."""
    return invalid(f"'{param}' cannot be followed: {why}", param, "invalid_schema")


def reason(matcher: LLMatcher) -> str:
    """Return why a matcher cannot go on: in our words where it has no more than a name for it."""
    why = f"{matcher.stop_reason()}: {matcher.get_error().splitlines()[0]}"
    return "no text has this form" if DEAD_END in why else why[:MOST_SHOWN]


def _with(mask: Mask, token: int) -> Mask:
    """A mask that allows one token more."""
    changed = bytearray(mask)
    changed[token // 8] |= 1 << token % 8
    return bytes(changed)
