"""A server for the clients of OpenAI, Anthropic and Ollama, with a page; needs `cortiq[serve]`.

Requests are read and answered on an event loop; each model has one thread that owns its engine
(`worker`). Every API's request becomes a chat or text request of OpenAI's form (`*_request`), which
`parsed_request` checks, and its answer is written from the same updates (`*_writer`).
"""

from __future__ import annotations
