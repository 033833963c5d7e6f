"""Every exception of cortiq: what was wrong, where, and what to do about it."""

from __future__ import annotations


def shown(value: object, most: int = 80) -> str:
    """The `repr` of a value that somebody else chose, for a message: `most` characters of it."""
    try:
        text = repr(value)
    except Exception:  # Python prints no integer of more than 4,300 digits; a repr may do anything
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= most else f"{text[: most - 3]}..."


MOST_LINES, MOST_LINE = 5, 2000
"""Lines of an error's sentence, and of its hint; characters of a line."""
CONTROL = {n: f"\\x{n:02x}" for n in (*range(32), *range(127, 160)) if chr(n) not in "\n\t"}
"""What a terminal would obey, as Python's `repr` writes it."""


def printable(text: str) -> str:
    """Return a text in which files and models have nothing to say to a terminal."""
    return text.translate(CONTROL)


def printable_json(text: str) -> str:
    """Return JSON of the same value without the control characters that JSON may hold."""
    return text.translate({n: f"\\u{n:04x}" for n in range(127, 160)})


def brief(text: str, most: int = MOST_LINES) -> str:
    """Return a text that somebody else may have chosen: printable, of a few lines."""
    lines = printable(text).split("\n")
    if len(lines) > most:
        lines = [*lines[: most - 2], f"... ({len(lines)} lines)", lines[-1]]
    return "\n".join(f"{x[: MOST_LINE - 3]}..." if len(x) > MOST_LINE else x for x in lines)


class CortiqError(Exception):
    """Base of all errors a user can cause; the command line prints it and exits with `exit_code`.

    Parameters
    ----------
    what : the sentence that says what is wrong.
    where : file, tensor, option or layer it concerns, if there is one.
    hint : what the reader can do about it.

    Names and texts of files are in all three: the message is made of them in their `brief` form.
    """

    exit_code = 2
    most_lines = MOST_LINES

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


class DownloadError(CortiqError):
    """A model could not be fetched, or its bytes are not the expected ones."""


class GraphError(CortiqError):
    """A graph or program breaks a rule of the IR."""


class TokenizerError(CortiqError):
    """A tokenizer or chat template is missing, malformed, or was refused."""


class NoTokenizerError(TokenizerError):
    """A model comes without a tokenizer: it is fed with token ids, and text is out of reach."""


class RequestError(CortiqError):
    """A request cannot be served: empty prompt, id out of range, context too short, bad option."""


class OptionError(RequestError):
    """An option's value is not allowed.

    Parameters
    ----------
    option : its name in the Python API, which the message begins with; the command line shows the
        flag in its place.
    what : the rest of the sentence.
    """

    def __init__(self, option: str, what: str, *, hint: str | None = None) -> None:
        self.option = option
        super().__init__(f"{option} {what}", hint=hint)


class BackendError(CortiqError):
    """A backend is unknown, unavailable, of another version, or broke its contract."""


class DeclinedError(CortiqError):
    """A backend declined nodes or a batch before anything moved; the message lists the reasons."""

    most_lines = 1000  # a node a line, as it was asked for


class SequenceFailedError(CortiqError):
    """A sequence met a non-finite or out-of-domain value and was cleared."""
