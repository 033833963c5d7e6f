"""Errors in OpenAI's format: clients look at the status and the code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cortiq.errors import ContextError, CortiqError, OptionError, RequestError, TokenizerError


class ApiError(Exception):
    """An error that is sent to the client.

    Parameters
    ----------
    status : HTTP status. message : a sentence for people.
    code : for programs, such as `context_length_exceeded`. param : field of the request.
    logged : further facts for the log; never any text of a prompt.
    retry_after : seconds after which the request may be sent again; None if nobody knows.
    """

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        param: str | None = None,
        logged: Mapping[str, str] | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.logged = dict(logged or {})
        self.status, self.message, self.code, self.param = status, message, code, param

    @property
    def kind(self) -> str:
        """OpenAI's `type` for errors of this status."""
        kinds = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
        return kinds.get(self.status, "server_error" if self.status >= 500 else INVALID)

    @property
    def facts(self) -> dict[str, str]:
        """Facts for the log line: the code, the field, and `logged`."""
        param = {} if self.param is None else {"param": self.param}
        return {"error": self.code or self.kind, **param, **self.logged}

    def as_dict(self) -> dict[str, Any]:
        """Return the body of the error response."""
        facts = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": facts}


INVALID = "invalid_request_error"
COMMANDS = ("cortiq ", "pip ", "docs/", "http")
"""Beginnings of hints that are no words: they stay as they are."""
ANTHROPIC_KINDS = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error",
}  # fmt: skip
"""Anthropic's `type` for errors, by their status."""


def anthropic_error(error: ApiError) -> dict[str, Any]:
    """Return the body of an error in the form of the Messages API."""
    usual = "api_error" if error.status >= 500 else INVALID
    kind = ANTHROPIC_KINDS.get(error.status, usual)
    return {"type": "error", "error": {"type": kind, "message": error.message}}


def error_body(error: ApiError, path: str) -> dict[str, Any]:
    """Return an error in the form of the API that a path belongs to: OpenAI's unless another's."""
    if path.removeprefix("/v1").startswith("/messages"):
        return anthropic_error(error)
    return {"error": error.message} if path.startswith("/api/") else error.as_dict()


def queue_full(waiting: int) -> ApiError:
    """Return the error (429) of a full queue."""
    message = f"{waiting} requests are waiting: try again later."
    return ApiError(429, message, "queue_full", retry_after=1)


def shutting_down() -> ApiError:
    """Return the error (503) of a response that shutdown interrupts."""
    return ApiError(
        503, "The server is shutting down and has interrupted this response.", "shutting_down"
    )


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """Return the error (400) of an invalid request."""
    return ApiError(400, message, code, param)


def too_long(prompt: int, context: int, param: str) -> ApiError:
    """Return the error of a prompt that leaves no room for an answer."""
    message = (
        f"This model's maximum context length is {context} tokens, and the prompt has {prompt}; "
        "at least one token must be left for the answer."
    )
    return ApiError(400, message, "context_length_exceeded", param)


def too_deep() -> ApiError:
    """Return the error of a request that is nested too deeply."""
    return invalid("The request is nested too deeply.", code="too_deep")


def too_large(size: int, longest: int, context: int, param: str) -> ApiError:
    """Return the error of a text too long for the context however it is tokenized."""
    message = (
        f"This model's maximum context length is {context} tokens of at most {longest} bytes, and "
        f"the prompt has {size} bytes."
    )
    return ApiError(400, message, "context_length_exceeded", param)


def error_sentence(error: BaseException) -> str:
    """Return an error's message and its hint, as sentences on one line."""
    if not isinstance(error, CortiqError) or not error.hint:
        return " ".join(str(error).split())
    where = f"{error.where}: " if error.where else ""
    said, hint = (" ".join(text.split()) for text in (f"{where}{error.what}", error.hint))
    end = "" if said.endswith((".", "?", "!")) else "."
    command = hint.startswith(COMMANDS)  # a command and a name keep their letters
    return f"{said}{end} {hint if command else hint[:1].upper() + hint[1:]}"


def as_api_error(error: BaseException) -> ApiError:
    """Convert an error for the client; an unexpected one reveals no internals."""
    if isinstance(error, ApiError):
        return error
    said = error_sentence(error)
    if isinstance(error, OptionError):
        return invalid(said, error.option)
    if isinstance(error, RequestError):
        code = "context_length_exceeded" if isinstance(error, ContextError) else None
        return invalid(said, error.where, code)
    if isinstance(error, TokenizerError):
        return invalid(said)
    if isinstance(error, MemoryError):
        return ApiError(503, "there is not enough memory", "out_of_memory")
    if isinstance(error, CortiqError):
        return ApiError(500, said, "engine_error")
    return ApiError(500, "The server had an internal error, which its log shows.", "internal_error")
