"""The model API: load, generate, stream, chat, score, embed."""
