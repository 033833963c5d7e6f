"""One prompt on every available backend: the same tokens and the same bits of every logit."""

from __future__ import annotations

import sys

import cortiq
from cortiq.plugins import availability, default_plugins

digests = set()
for name, backend in default_plugins().backends.items():
    _, reason = availability(backend)
    if reason is not None:
        print(f"{name}: {reason}")
        continue
    with cortiq.load(sys.argv[1] if len(sys.argv) > 1 else "smollm2", backend=name) as model:
        made = model.generate("Two and two", max_tokens=4, temperature=0.9, seed=1)
        print(f"{name}: {made.text!r} {made.digest}")
        digests.add(made.digest)
assert len(digests) == 1
