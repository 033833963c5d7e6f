"""An OpenAI-compatible server, with a page to chat on; needs `cortiq[serve]`.

Requests are read and answered on an event loop; each model has one thread that owns its engine
(`worker`). Only `app` and `run` import the web libraries, and only `grammar` the grammar library.
"""

from __future__ import annotations
