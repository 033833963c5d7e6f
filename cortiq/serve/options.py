"""Options of the server."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.options import ANSWER_TOKENS, OptionSet, documented, option


@documented
@dataclass(frozen=True)
class ServeOptions(OptionSet):
    """Options of the server; those of sampling are for requests that name none."""

    host: str = option(
        "127.0.0.1", "Address to listen on; one that others can reach needs an API key."
    )
    port: int = option(8080, "Port to listen on; 0 takes a free one.", int, least=0, most=65535)
    api_key: str | None = option(
        None, "Key that clients must send as `Authorization: Bearer KEY`.", metavar="KEY"
    )
    api_keys: str | None = option(
        None, "TOML file of keys with names, limits and priorities; read again when it changes.",
        metavar="FILE",
    )  # fmt: skip
    without_key: bool = option(
        False, "Serve an address that others can reach without any key.", bool
    )
    allow_host: tuple[str, ...] = option(
        (), "Host name that requests may be sent to, beside this machine's; may be repeated.",
        repeated=True, metavar="NAME",
    )  # fmt: skip
    allow_origin: tuple[str, ...] = option(
        (), "Web origin whose pages may call this server; may be repeated.", repeated=True,
        metavar="URL",
    )  # fmt: skip
    chat_template: str | None = option(
        None, "File with a chat template to use instead of the models' own.", metavar="FILE"
    )
    answer_tokens: int = option(
        ANSWER_TOKENS, "Default `max_tokens` of chat answers.", int, least=1
    )
    temperature: float | None = option(
        None, "Default temperature of requests, in place of the model's own.", float, least=0.0
    )
    top_k: int | None = option(None, "Default top-k of requests; 0 for none.", int, least=0)
    top_p: float | None = option(None, "Default top-p of requests.", float, above=0.0, most=1.0)
    min_p: float | None = option(None, "Default min-p of requests.", float, least=0.0, most=1.0)
    repetition_penalty: float | None = option(
        None, "Default repetition penalty of requests.", float, above=0.0
    )
    batch_rows: int | None = option(
        None, "Most rows computed together; by default as many as suit the device.", int, least=1
    )
    sequences: int | None = option(
        None, "Sequences computed at once, others wait; by default as many as suit the device.",
        int, least=1,
    )  # fmt: skip
    waiting: int = option(256, "Sequences that may wait; more are refused (429).", int, least=1)
    kept_prefixes: int = option(
        16, "Ended sequences kept as prefix cache; 0 keeps none.", int, least=0
    )
    kept_bytes: int = option(
        1 << 30, "Memory limit of the prefix cache, in bytes; 0 for no limit.", int, least=0
    )
    max_loaded: int | None = option(
        None, "Models in memory at once; the others are loaded when requests name them. By "
        "default all of them.", int, least=1,
    )  # fmt: skip
    model_bytes: int = option(
        0, "Most bytes of weights in memory, as far as models have to be loaded; 0 for no limit.",
        int, least=0,
    )  # fmt: skip
    idle_seconds: float = option(
        0.0, "Time without requests after which a model is unloaded; 0 for never.", float, least=0.0
    )
    load_wait_seconds: float = option(
        600.0, "Time that a request may wait until its model is loaded; then it is refused (503).",
        float, above=0.0,
    )  # fmt: skip
    allow_pull: bool = option(
        False, "Let requests fetch models by known names and hf: names.", bool
    )
    fetch_images: bool = option(
        False, "Fetch images that requests name by http or https addresses, public ones only.", bool
    )
    receipts: str | None = option(
        None, "Folder to write a receipt of every answer to.", metavar="DIR"
    )
    request_log: str | None = option(
        None, "File to append every request and answer to, for `cortiq replay`.", metavar="FILE"
    )
    sign: str | None = option(
        None, "Private Ed25519 key (PEM, OpenSSH) to sign receipts with.", metavar="FILE"
    )
    draft: str = option("off", "Drafter for speculative decoding, as in `generate`.")
    ignore_unknown_fields: bool = option(
        False, "Ignore fields of requests that are not known and name them in the response's "
        "header x-cortiq-ignored, instead of refusing them.", bool,
    )  # fmt: skip
    body_bytes: int = option(4 << 20, "Largest request body, in bytes.", int, least=1024)
    header_seconds: float = option(
        10.0, "Time for a request's head; then the connection is closed.", float,
        above=0.0,
    )  # fmt: skip
    body_seconds: float = option(
        30.0, "Time for a request's body; then the request is refused.", float, above=0.0
    )
    write_seconds: float = option(
        60.0, "Time that a client may not read; then its request is cancelled.", float, above=0.0
    )
    drain_seconds: float = option(
        30.0, "Time that running requests have to finish after SIGTERM.", float, least=0.0
    )
    connections: int = option(1024, "Connections at once; more are refused (503).", int, least=1)
    log_format: str | None = option(
        None, "Log format: short lines, text with all facts, or json with one object per line; by "
        "default short on a terminal, text elsewhere.", choices=("short", "text", "json"),
    )  # fmt: skip
    access_log: str | None = option(
        None, "File to append the requests to, as JSON; it may be rotated.", metavar="FILE"
    )
