"""Errors in OpenAI's shape: what client classes look at is the status and the code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cortiq.errors import CortiqError, OptionError, RequestError, TokenizerError


class ApiError(Exception):
    """An error that a client gets.

    Parameters
    ----------
    status : of HTTP. message : a sentence for people.
    code : for programs, such as `context_length_exceeded`. param : field of the request.
    noted : what the log has of it besides; never a text that is to be computed.
    """

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        param: str | None = None,
        noted: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.noted = dict(noted or {})
        self.status, self.message, self.code, self.param = status, message, code, param

    @property
    def kind(self) -> str:
        """The `type` that OpenAI gives such errors."""
        kinds = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
        return kinds.get(self.status, "server_error" if self.status >= 500 else INVALID)

    @property
    def facts(self) -> dict[str, str]:
        """What the log has of it: the code, the field, and what else was noted."""
        param = {} if self.param is None else {"param": self.param}
        return {"error": self.code or self.kind, **param, **self.noted}

    def as_dict(self) -> dict[str, Any]:
        """The body of the answer."""
        facts = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": facts}


INVALID = "invalid_request_error"


def queue_full(waiting: int) -> ApiError:
    """A request too many."""
    message = f"{waiting} requests are waiting: try again when some have ended."
    return ApiError(429, message, "queue_full")


def cut_off() -> ApiError:
    """An answer that the server's end cut short."""
    return ApiError(503, "The server ends, and has cut this answer off.", "shutting_down")


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """A request that says something that cannot be (400)."""
    return ApiError(400, message, code, param)


def too_long(prompt: int, context: int, param: str) -> ApiError:
    """A prompt that leaves no room to answer, in this field."""
    message = (
        f"This model's maximum context length is {context} tokens, and the prompt has {prompt}; "
        "at least one is needed for the answer."
    )
    return ApiError(400, message, "context_length_exceeded", param)


def too_deep() -> ApiError:
    """Return the error of a request whose values are nested without end."""
    return invalid("The request is nested too deeply.", code="too_deep")


def too_large(size: int, longest: int, context: int, param: str) -> ApiError:
    """Return the error of a text that cannot fit, whatever its tokens are: none is looked for."""
    message = (
        f"This model's maximum context length is {context} tokens of at most {longest} bytes, and "
        f"the prompt has {size} bytes."
    )
    return ApiError(400, message, "context_length_exceeded", param)


def one_line(error: BaseException) -> str:
    """An error's sentence, and as another one what can be done about it."""
    if not isinstance(error, CortiqError) or not error.hint:
        return " ".join(str(error).split())
    where = f"{error.where}: " if error.where else ""
    said, hint = (" ".join(text.split()) for text in (f"{where}{error.what}", error.hint))
    end = "" if said.endswith((".", "?", "!")) else "."
    return f"{said}{end} {hint[:1].upper()}{hint[1:]}"


def as_api_error(error: BaseException) -> ApiError:
    """An error of ours as a client gets it; what nobody expected says nothing of its insides."""
    if isinstance(error, ApiError):
        return error
    said = one_line(error)
    if isinstance(error, OptionError):
        return invalid(said, error.option)
    if isinstance(error, RequestError):
        return invalid(said, error.where)
    if isinstance(error, TokenizerError):
        return invalid(said)
    if isinstance(error, MemoryError):
        return ApiError(503, "there is not enough memory", "out_of_memory")
    if isinstance(error, CortiqError):
        return ApiError(500, said, "engine_error")
    return ApiError(500, "The server met an error of its own; its log has it.", "internal_error")
