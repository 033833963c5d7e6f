"""Names of the commands that `cortiq` has itself."""

COMMANDS = {
    "pull": "Fetch a model into the cache.",
    "list": "List the models in the cache.",
    "rm": "Remove models from the cache.",
    "chat": "Chat with a model.",
    "generate": "Generate text.",
    "serve": "Serve models to OpenAI's clients, and a page to chat on.",
    "prefix": "Keep the beginning of a prompt in a file, computed once, for any backend.",
    "score": "Score a text: perplexity, with its standard error.",
    "verify": "Compute a receipt's generation again, and compare every bit.",
    "inspect": "Show a model's graph, and who would compute it.",
    "bench": "Measure a model: prompt and decode tokens per second.",
    "backends": "List backends and their devices.",
    "doctor": "Say what this machine can run, and what would mend what it cannot.",
    "completion": "Print the script that completes commands for a shell.",
    "conform": "Prove a backend right, to the bit.",
    "replay": "Run a failed case of `conform` again, from its file.",
    "bisect": "Find the first node of a model on which two backends differ.",
    "matrix": "Show reports of `conform` side by side on one page.",
    "new-backend": "Write the package of a new backend.",
}
"""Our own commands, each in the module and under the attribute of its name."""
KIT = ("conform", "replay", "bisect", "matrix", "new-backend")
"""Those of them that the conformance kit brings."""
KIT_PACKAGE = "cortiq_conformance"
"""Where these are; as a plugin the package brings the very same ones."""
