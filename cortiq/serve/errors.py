"""Errors in OpenAI's shape: what client classes look at is the status and the code."""

from __future__ import annotations

from typing import Any

from cortiq.errors import CortiqError, OptionError, RequestError, TokenizerError


class ApiError(Exception):
    """An error that a client gets.

    Parameters
    ----------
    status : of HTTP. message : a sentence for people.
    code : for programs, such as `context_length_exceeded`. param : field of the request.
    """

    def __init__(
        self, status: int, message: str, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param

    @property
    def kind(self) -> str:
        """The `type` that OpenAI gives such errors."""
        kinds = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
        return kinds.get(self.status, "server_error" if self.status >= 500 else INVALID)

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


def as_api_error(error: BaseException) -> ApiError:
    """An error of ours as a client gets it; what nobody expected says nothing of its insides."""
    if isinstance(error, ApiError):
        return error
    said = " ".join(str(error).split())
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
