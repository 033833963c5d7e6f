"""Options of the server."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.options import OptionSet, documented, option


@documented
@dataclass(frozen=True)
class ServeOptions(OptionSet):
    """Options of the server; none of them changes a token."""

    host: str = option("127.0.0.1", "Address to listen on; others than this machine's need care.")
    port: int = option(8080, "Port to listen on; 0 takes a free one.", int, least=0, most=65535)
    api_key: str | None = option(
        None, "Key that clients have to send as `Authorization: Bearer KEY`.", metavar="KEY"
    )
    allow_origin: tuple[str, ...] = option(
        (), "Web origin whose pages may call this server; may be repeated.", repeated=True,
        metavar="URL",
    )  # fmt: skip
    chat_template: str | None = option(
        None, "File with a chat template to use in place of the models' own.", metavar="FILE"
    )
    answer_tokens: int = option(
        1024, "Longest chat answer in tokens where a request names none.", int, least=1
    )
    batch_rows: int = option(256, "Rows computed together at most.", int, least=1)
    sequences: int = option(64, "Sequences computed at once; others wait.", int, least=1)
    waiting: int = option(256, "Sequences that may wait; more are refused (429).", int, least=1)
    kept_prefixes: int = option(
        16, "Ended sequences kept, for prompts that begin like them; 0 keeps none.", int, least=0
    )
    kept_bytes: int = option(
        1 << 30, "Memory that kept sequences may take, in bytes; 0 for no limit.", int, least=0
    )
    draft: str = option("off", "Drafter of tokens to verify together, as of `generate`.")
    body_bytes: int = option(4 << 20, "Largest request body, in bytes.", int, least=1024)
    header_seconds: float = option(
        10.0, "A connection that has not sent its request's head by then is closed.", float,
        above=0.0,
    )  # fmt: skip
    body_seconds: float = option(
        30.0, "A request whose body has not come by then is refused.", float, above=0.0
    )
    write_seconds: float = option(
        60.0, "A client that does not read for so long is given up, and its work.", float, above=0.0
    )
    drain_seconds: float = option(
        30.0, "After SIGTERM, answers under way may take so long to end.", float, least=0.0
    )
    connections: int = option(1024, "Connections at once; more are refused (503).", int, least=1)
    log_format: str = option(
        "text", "Log lines: text, or json with one object a line.", choices=("text", "json")
    )
