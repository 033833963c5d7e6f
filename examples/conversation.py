"""A chat of several turns with a prefix cache: earlier turns are not computed again."""

from __future__ import annotations

import sys

import cortiq

QUESTIONS = ("What is the capital of France?", "And of Germany?", "And of Italy?")

with cortiq.load(sys.argv[1] if len(sys.argv) > 1 else "smollm2") as model:
    model.keep_prefixes()
    messages = [{"role": "system", "content": "You answer in one short sentence."}]
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        answer = model.chat(messages, max_tokens=30)
        messages.append({"role": "assistant", "content": answer.text})
        stats = answer.stats
        print(f"> {question}\n{answer.text}")
        print(f"[{stats.reused_tokens} of {stats.prompt_tokens} prompt tokens were cached]")
