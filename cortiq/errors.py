"""Every exception of cortiq: what was wrong, where, and what to do about it."""

from __future__ import annotations


def shown(value: object, most: int = 80) -> str:
    """The `repr` of a value that somebody else chose, for a message: `most` characters of it."""
    try:
        text = repr(value)
    except Exception:  # Python prints no integer of more than 4,300 digits; a repr may do anything
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= most else f"{text[: most - 3]}..."


class CortiqError(Exception):
    """Base of all errors a user can cause; the command line prints it and exits with `exit_code`.

    Parameters
    ----------
    what : the sentence that says what is wrong.
    where : file, tensor, option or layer it concerns, if there is one.
    hint : what the reader can do about it.
    """

    exit_code = 2

    def __init__(self, what: str, *, where: str | None = None, hint: str | None = None) -> None:
        self.what, self.where, self.hint = what, where, hint
        super().__init__(self._sentence())

    def _sentence(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text}\n  {self.hint}" if self.hint else text


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


class SequenceFailedError(CortiqError):
    """A sequence met a non-finite or out-of-domain value and was cleared."""
