"""Names of the built-in commands of `cortiq`."""

COMMANDS = {
    "pull": "Fetch a model into the cache.",
    "list": "List the models in the cache.",
    "rm": "Remove models from the cache.",
    "convert": "Quantise a model, or convert it to another format.",
    "requant": "Quantise some matrices of a CMF file again; the others keep their bytes.",
    "run": "Answer a prompt, or chat.",
    "warm": "Compile the kernels of a model ahead of time.",
    "chat": "Chat with a model.",
    "generate": "Generate text.",
    "serve": "Serve models to the clients of OpenAI, Anthropic and Ollama, and a page.",
    "prefix": "Store a computed prompt prefix in a file, for any backend.",
    "transcribe": "Transcribe the speech in an audio file.",
    "score": "Score a text: perplexity, with its standard error.",
    "explain": "Show what a model computes of a text, layer by layer, or where two runs differ.",
    "calibrate": "Find the temperature at which a model's confidence is calibrated.",
    "replay": "Compute a server's request log again, or a failed case of `conform`.",
    "verify": "Recompute a receipt's generation, or check a CMF file's hashes.",
    "inspect": "Show a model's graph, and which backend computes each node.",
    "bench": "Measure a model: prompt and decode tokens per second.",
    "backends": "List backends and their devices.",
    "doctor": "Show what this machine can run, and how to fix what does not run.",
    "completion": "Print the script that completes commands for a shell.",
    "conform": "Test a backend against the contract, bit by bit.",
    "bisect": "Find the first node of a model on which two backends differ.",
    "matrix": "Show reports of `conform` side by side on one page.",
    "new-backend": "Write the package of a new backend.",
}
"""Built-in commands, each in the module and under the attribute of its name."""
GROUPS = {
    "Use a model": ("run", "chat", "generate", "transcribe", "serve"),
    "Models": ("pull", "list", "rm", "inspect", "convert", "requant"),
    "Measure and verify": ("score", "bench", "explain", "calibrate", "verify", "replay", "prefix"),
    "This machine": ("backends", "doctor", "warm", "completion"),
    "For authors of backends": ("conform", "bisect", "matrix", "new-backend"),
}
"""Commands as the help shows them, by heading."""
KIT = ("conform", "bisect", "matrix", "new-backend")
"""Commands that the conformance kit brings."""
SHARED_WITH_KIT = ("replay",)
"""Commands of ours that hand a part of their work to the kit's own of the same name."""
KIT_PACKAGE = "cortiq_conformance"
"""The kit's package, which brings the same commands as a plugin."""
