"""Exceptions of cortiq: what is wrong, where, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable


def shown(value: object, most: int = 80) -> str:
    """Return the `repr` of an untrusted value for a message, at most `most` characters."""
    try:
        text = repr(value)
    except Exception:  # Python prints no integer of more than 4,300 digits; a repr may do anything
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= most else f"{text[: most - 3]}..."


MAX_LINES, MAX_LINE = 5, 2000
"""Most lines of an error's message, and of its hint; most characters of a line."""
CONTROL = {n: f"\\x{n:02x}" for n in (*range(32), *range(127, 160)) if chr(n) not in "\n\t"}
"""Control characters, as Python's `repr` writes them."""


def printable(text: str) -> str:
    """Return a text with its control characters escaped, safe to print on a terminal."""
    return text.translate(CONTROL)


def printable_json(text: str) -> str:
    """Return JSON of the same value without the control characters that JSON may hold."""
    return text.translate({n: f"\\u{n:04x}" for n in range(127, 160)})


def brief(text: str, most: int = MAX_LINES) -> str:
    """Return an untrusted text for a message: printable, a few lines."""
    lines = printable(text).split("\n")
    if len(lines) > most:
        lines = [*lines[: most - 2], f"... ({len(lines)} lines)", lines[-1]]
    return "\n".join(f"{x[: MAX_LINE - 3]}..." if len(x) > MAX_LINE else x for x in lines)


class CortiqError(Exception):
    """Base of all errors a user can cause; the command line prints it and exits with `exit_code`.

    Parameters
    ----------
    what : the sentence that says what is wrong.
    where : file, tensor, option or layer that it concerns, if any.
    hint : advice to the reader.

    All three may contain names and texts of files, so that the message uses their `brief` form.
    """

    exit_code = 2
    most_lines = MAX_LINES

    def __init__(self, what: str, *, where: str | None = None, hint: str | None = None) -> None:
        self.what, self.where, self.hint = what, where, hint
        super().__init__(self._sentence())

    def _sentence(self) -> str:
        where = brief((self.where or "").replace("\n", "\\n"))
        what = brief(self.what, self.most_lines)
        text = f"{where}: {what}" if where else what
        return f"{text}\n  {brief(self.hint, self.most_lines)}" if self.hint else text


class FormatError(CortiqError):
    """A model file is truncated, corrupt, or not what it says it is."""


class UnsupportedError(CortiqError):
    """A well-formed model asks for something cortiq does not implement; the message names it."""


class ModelNotFoundError(CortiqError):
    """No model is known under this name, file or folder."""


class SeveralModelsError(ModelNotFoundError):
    """A name stands for several models, and which one is meant has to be said.

    Attributes
    ----------
    choices : the name of each, and its size in bytes.
    """

    most_lines = 1000
    choices: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, name: str, choices: Iterable[tuple[str, int]], fitting: bool) -> SeveralModelsError:
        """Return the error that lists the choices; `fitting` says whether the name fits them."""
        listed = tuple(choices)
        lines = (f"{choice}  {size / 1e9:.2f} GB" for choice, size in listed)
        what = f"fits {len(listed)} models" if fitting else "fits none of the models there"
        error = cls(what, where=name, hint="\n  ".join(["name one of these:", *lines]))
        error.choices = listed
        return error


class UntrustedError(ModelNotFoundError):
    """A model's name has no hash, and nobody has said that its server is trusted."""


class DownloadError(CortiqError):
    """A model could not be fetched, or its bytes are not the expected ones."""


class GraphError(CortiqError):
    """A graph or program breaks a rule of the IR."""


class TokenizerError(CortiqError):
    """A tokenizer or chat template is missing, malformed, or was refused."""


class NoTokenizerError(TokenizerError):
    """A model has no tokenizer: it takes token ids but no text."""


class RequestError(CortiqError):
    """A request cannot be served: empty prompt, id out of range, context too short, bad option."""


class ContextError(RequestError):
    """A prompt has more tokens than the context."""


class OptionError(RequestError):
    """An option's value is not allowed.

    Parameters
    ----------
    option : its name in the Python API, with which the message begins; the command line shows the
        flag instead.
    what : the rest of the sentence.
    """

    def __init__(self, option: str, what: str, *, hint: str | None = None) -> None:
        self.option = option
        super().__init__(f"{option} {what}", hint=hint)


class BackendError(CortiqError):
    """A backend is unknown, unavailable, of another version, or broke its contract."""


class ExecutableLostError(BackendError):
    """An executable cannot compute any more; the model must be loaded anew."""


class DeviceMemoryError(BackendError, MemoryError):
    """A model's weights do not fit the memory of a device."""


class DeclinedError(CortiqError):
    """A backend declined nodes or a batch before anything moved; the message lists the reasons."""

    most_lines = 1000  # a node a line, as it was asked for


class SequenceFailedError(CortiqError):
    """A sequence met a non-finite or out-of-domain value and was cleared."""
