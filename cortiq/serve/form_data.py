"""Bodies of `multipart/form-data`: fields and files, within the body's limit."""

from __future__ import annotations

from email.message import Message
from typing import NamedTuple

from cortiq.serve.errors import ApiError, invalid

MOST_PARTS = 64
BREAK = b"\r\n"
KIND = "multipart/form-data"


class FormPart(NamedTuple):
    """A field or file of a form."""

    name: str
    filename: str | None
    data: bytes


def read_form(data: bytes, content_type: str) -> list[FormPart]:
    """Return the parts of a form.

    Raises
    ------
    ApiError : it is another kind of body (415), or damaged (400).
    """
    header = _header(content_type)
    boundary = header.get_param("boundary")
    if header.get_content_type() != KIND or not isinstance(boundary, str) or not boundary:
        raise ApiError(415, f"The body must be {KIND} with a boundary.", "unsupported_media_type")
    pieces = (BREAK + data).split(BREAK + b"--" + boundary.encode("latin-1", "replace"))
    if len(pieces) < 2 or not pieces[-1].startswith(b"--"):
        raise invalid("The form is cut off: its last boundary is missing.")
    if len(pieces) > MOST_PARTS + 2:
        raise invalid(f"The form has more than {MOST_PARTS} parts.")
    return [_part(piece) for piece in pieces[1:-1]]


def _header(text: str) -> Message:
    header = Message()
    header["content-type"] = text.replace("\r", " ").replace("\n", " ")
    return header


def _part(piece: bytes) -> FormPart:
    head, found, body = piece.partition(BREAK + BREAK)
    header = Message()
    for one in head.decode("utf-8", "replace").split("\r\n"):
        field, colon, value = one.partition(":")
        if colon and field.strip().lower() == "content-disposition":
            header["content-disposition"] = value.strip()
    name = header.get_param("name", header="content-disposition")
    if not found or not isinstance(name, str):
        raise invalid("A part of the form has no name.")
    file = header.get_param("filename", header="content-disposition")
    return FormPart(name, file if isinstance(file, str) else None, body)
