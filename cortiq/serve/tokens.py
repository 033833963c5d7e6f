"""`/tokenize` and `/detokenize`: texts and conversations to token ids, and back."""

from __future__ import annotations

from typing import Any

from cortiq.errors import CortiqError
from cortiq.serve.errors import as_api_error, invalid
from cortiq.serve.fields import Fields
from cortiq.serve.messages import read_messages, read_tools
from cortiq.serve.parsed_request import conversation_prompt
from cortiq.serve.served_model import ServedModel
from cortiq.serve.token_entries import token_text


def tokenize(served: ServedModel, fields: Fields) -> dict[str, Any]:
    """Return the token ids of `prompt`, or of `messages` in the chat template.

    Raises
    ------
    ApiError : it is no text, or the model has no tokenizer or chat template.
    """
    fields.text("model")
    prompt, with_texts = fields.text("prompt"), fields.flag("return_token_strs")
    special = fields.flag("add_special_tokens", True)
    if (prompt is None) == (fields.items("messages") is None):
        raise invalid("Send 'prompt', a text, or 'messages', a conversation.", "prompt")
    tokenizer = served.model.tokenizer
    if prompt is None:
        messages, tools = read_messages(fields), read_tools(fields)
        inner = fields.fields("chat_template_kwargs")
        fields.close()
        options = inner.values if inner else None
        ids = list(conversation_prompt(served, messages, options, tools.offered).ids)
    else:
        fields.close()
        served.check_size(prompt, "prompt")
        ids = tokenizer.encode(prompt, add_bos=None if special else False)
    texts = [token_text(tokenizer, token) for token in ids] if with_texts else None
    context = served.model.context
    return {"count": len(ids), "max_model_len": context, "tokens": ids, "token_strs": texts}


def detokenize(served: ServedModel, fields: Fields) -> dict[str, Any]:
    """Return the text of `tokens`; ApiError if they are no ids of the model."""
    fields.text("model")
    ids = fields.items("tokens")
    fields.close()
    size = served.model.tokenizer.vocab_size
    if ids is None or not all(type(token) is int and 0 <= token < size for token in ids):
        raise fields.wrong("tokens", f"an array of token ids below {size}")
    try:
        return {"prompt": served.model.tokenizer.decode(ids, skip_special=False)}
    except CortiqError as error:
        raise as_api_error(error) from None
