"""Structured output: JSON schemas and forced tool calls as token masks for the sampler.

The grammar library is llguidance. A grammar says which tokens are allowed at each step, and drawing
among them follows the contract: so structured output is the same on every backend, too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from cortiq.engine.masks import BatchedMasks
from cortiq.errors import shown
from cortiq.numerics.masks import Mask, mask_of
from cortiq.serve.embedded_schemas import objects_only, relocated
from cortiq.serve.errors import ApiError, invalid
from cortiq.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher, LLTokenizer

WHITESPACE = {"x-guidance": {"whitespace_pattern": r"[ \n\t]{1,20}"}}
"""White space in JSON is bounded: a small model may write nothing else."""


MAX_GRAMMAR = 1 << 16
"""Longest grammar in characters; the library takes seconds for one of twice the size."""
MAX_SHOWN = 200
DEAD_END = "NoExtension"
"""The library's error for a schema that no text follows, such as one that only refers to itself."""


class Grammars:
    """Compiles grammars for one model's tokenizer.

    Parameters
    ----------
    vocabulary : number of tokens that the model has logits for.
    eos_ids : tokens that end an answer; a grammar allows them where the text may end.
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary: int, eos_ids: Sequence[int]) -> None:
        self.tokenizer, self.vocabulary, self.eos_ids = tokenizer, vocabulary, list(eos_ids)
        self._lock = Lock()

    @cached_property
    def _tokens(self) -> LLTokenizer:
        from llguidance import LLTokenizer, TokenizerWrapper

        wrapped = _GrammarTokenizer(self.tokenizer, self.vocabulary)
        return LLTokenizer(TokenizerWrapper(wrapped), eos_token=self.eos_ids)

    def compiled(self, grammar: str, param: str) -> LLMatcher:
        """Compile a grammar; raise ApiError (400) if it is invalid or uses what the library would
        ignore.
        """
        from llguidance import LLMatcher

        if not self.eos_ids or self.tokenizer.absent:
            raise invalid("The model has no end token, which a grammar needs.", param)
        if len(grammar) > MAX_GRAMMAR:
            why = f"its grammar has {len(grammar)} characters, more than {MAX_GRAMMAR}"
            raise schema_error(why, param)
        with self._lock:
            tokens = self._tokens
        wrong, complaints = LLMatcher.validate_grammar_with_warnings(grammar, tokens)
        if wrong or complaints:
            raise schema_error(complaints[0].splitlines()[0], param)
        made = LLMatcher(tokens, grammar, log_level=0)
        first = made.deep_copy()
        first.compute_bitmask()  # a reference to itself is found no earlier
        if first.is_error():
            raise schema_error(stop_reason(first), param)
        return made

    def call_grammar(self, schemas: Mapping[str, Mapping[str, Any]], wrap: tuple[str, str]) -> str:
        """Return the grammar of one tool call.

        Parameters
        ----------
        schemas : JSON schemas of the arguments, by name of the tool.
        wrap : text around the call's object.
        """
        calls = [_call_schema(*each, number) for number, each in enumerate(schemas.items())]
        before, after = (self._literal(text) for text in wrap)
        schema = json.dumps({"anyOf": calls, **WHITESPACE})
        return f"start: {before} call {after}\ncall: %json {schema}"

    def _literal(self, text: str) -> str:
        """Return a literal text in grammar syntax, its control tokens by id."""
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
    """Return the JSON schema of a call of one tool, at index `number` of `anyOf`."""
    arguments = objects_only(schema)
    if arguments is None:
        message = f"'tools': the parameters of {shown(name)} must describe an object."
        raise invalid(message, "tools", "invalid_schema")
    pointer = f"#/anyOf/{number}/properties/arguments"
    return {
        "type": "object",
        "properties": {"name": {"const": name}, "arguments": relocated(arguments, pointer)},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


class _GrammarTokenizer:
    """Adapts a tokenizer to the grammar library, with as many ids as the model has logits."""

    def __init__(self, tokenizer: Tokenizer, size: int) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id, self.bos_token_id = tokenizer.eos_id, None
        self.tokens = [tokenizer.token_bytes(token) for token in range(size)]
        self.special_token_ids = [t for t in range(size) if tokenizer.is_special(t)]

    def __call__(self, text: bytes | str) -> list[int]:
        shown = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        return self._tokenizer.encode(shown, add_bos=False)


class GrammarMasks(BatchedMasks):
    """The masks of one choice (`engine.request.Masks`): they depend on the ids alone.

    Parameters
    ----------
    prompt : length of the prompt; the grammar applies to the tokens after it.
    opened, opens, closes : whether the prompt opened a thinking block, and its markers; the grammar
        starts after the block. A block that the model may open itself needs an opening marker of
        one token.

    Attributes
    ----------
    fault : the library's error, empty without one. The answer then ends and the client gets an
        error.
    recipe : grammar and markers, of which `masks_of` makes the masks again.
    """

    def __init__(
        self,
        grammars: Grammars,
        matcher: LLMatcher,
        prompt: int,
        opened: bool = False,
        opens: str = "",
        closes: str = "",
        grammar: str = "",
    ) -> None:
        self.grammars, self.fault = grammars, ""
        self.recipe = {"grammar": grammar, "opened": opened, "opens": opens, "closes": closes}
        self._matcher, self._prompt, self._opened, self._closes = matcher, prompt, opened, closes
        ids = grammars.tokenizer.encode(opens, add_bos=False, parse_special=True) if opens else []
        self._opens = ids[0] if len(ids) == 1 and closes else None
        self._consumed: list[int] = []
        self._prepared: bytes | None = None  # the mask after `_consumed`, once it was computed
        self._thinking: list[int] = []  # ids up to the closing marker, as far as they were searched
        self._tail = b""  # last bytes of these ids

    def __call__(self, ids: Sequence[int]) -> Mask | None:
        """Return the mask of the token after these ids; None while the model thinks."""
        made, start = self._start(ids)
        if start is None:
            return None
        mask = self._mask(made[start:])
        if not made and not self._opened and self._opens is not None:
            mask = _allowing(mask, self._opens)
        return mask

    @classmethod
    def prepare(cls, asked: Sequence[tuple[Self, Sequence[int]]]) -> None:
        """Compute the masks after these ids by the library's threads."""
        waiting, longer = [], []
        for masks, ids in asked:
            made, start = masks._start(ids)
            if start is None:
                continue
            waiting.append(masks)
            if len(made) > start and masks._consumed == made[start:-1]:
                longer.append((masks._matcher, made[-1]))
                masks._consumed, masks._prepared = made[start:], None
            else:
                masks._advance(made[start:])
        if not waiting:
            return
        if longer:
            _executor().consume_token_par(longer)
        words = np.zeros((len(waiting), -(-waiting[0].grammars.vocabulary // 32)), np.int32)
        matchers = [(masks._matcher, at) for at, masks in enumerate(waiting)]
        place, each = words.ctypes.data, words.strides[0]
        _executor().unsafe_compute_mask_ptr(matchers, place, each, len(words))
        for masks, row in zip(waiting, words, strict=True):
            masks._prepared = row.tobytes()

    def _start(self, ids: Sequence[int]) -> tuple[list[int], int | None]:
        """Return the ids after the prompt, and the index at which the grammar starts: None while
        the model thinks.
        """
        made = list(ids[self._prompt :])
        opened = self._opened or (bool(made) and made[0] == self._opens)
        return made, self._after_thinking(made) if opened else 0

    def _after_thinking(self, made: Sequence[int]) -> int | None:
        """Return the index at which the grammar starts; None inside the thinking block."""
        thought, closes = self._thinking, self._closes.encode()
        if made[: len(thought)] != thought:
            thought, self._tail = [], b""
        for token in made[len(thought) :]:
            if closes in self._tail:
                break
            thought.append(token)
            kept = max(0, len(self._tail) - len(closes) + 1)
            self._tail = self._tail[kept:] + self.grammars.tokenizer.token_bytes(token)
        self._thinking = thought
        return len(thought) if closes in self._tail else None

    def _advance(self, made: Sequence[int]) -> None:
        """Advance the matcher to these tokens, rolling back where they differ."""
        matcher = self._matcher
        same = len(self._consumed)
        if made[:same] != self._consumed:
            same = 0
        while same < min(len(made), len(self._consumed)) and made[same] == self._consumed[same]:
            same += 1
        if same < max(len(made), len(self._consumed)):
            self._prepared = None
        if same < len(self._consumed):
            matcher.rollback(len(self._consumed) - same)
        if same < len(made):
            matcher.consume_tokens(list(made[same:]))
        self._consumed = list(made)

    def _mask(self, made: Sequence[int]) -> Mask:
        """Return the mask after these tokens."""
        self._advance(made)
        matcher = self._matcher
        mask = self._prepared if self._prepared is not None else matcher.compute_bitmask()
        if matcher.is_error():
            self.fault = stop_reason(matcher)
            return mask_of(self.grammars.eos_ids, self.grammars.vocabulary)
        size = -(-self.grammars.vocabulary // 8)  # the library's may be a word longer
        return bytes(mask)[:size].ljust(size, b"\0")


@cache
def _executor() -> LLExecutor:
    """Return the library's threads: four fifths of the processors, 32 at most."""
    from llguidance import LLExecutor

    return LLExecutor()


def masks_of(grammars: Grammars, recipe: Mapping[str, Any], prompt: int) -> GrammarMasks:
    """Return the masks that a recipe describes (`GrammarMasks.recipe`); errors as `compiled`."""
    matcher = grammars.compiled(recipe["grammar"], "grammar")
    markers = recipe["opens"], recipe["closes"]
    return GrammarMasks(grammars, matcher, prompt, recipe["opened"], *markers, recipe["grammar"])


def schema_error(why: str, param: str) -> ApiError:
    """Return the error of a schema or of tools that cannot be compiled or followed."""
    return invalid(f"'{param}' cannot be followed: {why}", param, "invalid_schema")


def stop_reason(matcher: LLMatcher) -> str:
    """Return why a matcher stopped, for error messages."""
    why = f"{matcher.stop_reason()}: {matcher.get_error().splitlines()[0]}"
    return "no text follows this schema" if DEAD_END in why else why[:MAX_SHOWN]


def _allowing(mask: Mask, token: int) -> Mask:
    """Return a mask that allows one more token."""
    changed = bytearray(mask)
    changed[token // 8] |= 1 << token % 8
    return bytes(changed)
