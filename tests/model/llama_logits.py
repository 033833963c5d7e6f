"""Write llama.cpp's rows of every position of a text: `llama_logits.py FILE.gguf OUT.npy WHAT IDS`.

WHAT is `logits`, `flash` (logits with flash attention), `hidden` (rows of an encoder), `scores`
(of a classifier) or `ids` (of a text, which stands in place of IDS). For an interpreter that has
llama-cpp-python. F32 keys and values, one thread, one batch, no flash attention: as close to the
formulas as llama.cpp computes.
"""

from __future__ import annotations

import ctypes
import sys

import numpy as np
from llama_cpp import llama_cpp as llama

ROWS = 256


@llama.llama_log_callback
def log(level: int, text: bytes, data: object) -> None:
    """Write what llama.cpp says to the standard error."""
    sys.stderr.write(text.decode(errors="replace"))


POOLING = {"hidden": llama.LLAMA_POOLING_TYPE_NONE, "scores": llama.LLAMA_POOLING_TYPE_RANK}


def opened(path: str, what: str) -> tuple[object, object]:
    """Return the model and a context of it."""
    options = llama.llama_model_default_params()
    options.n_gpu_layers = 0
    model = llama.llama_model_load_from_file(path.encode(), options)
    if not model:
        sys.exit("not loaded")
    options = llama.llama_context_default_params()
    options.n_ctx = options.n_batch = options.n_ubatch = ROWS
    options.n_threads = options.n_threads_batch = 1
    options.type_k = options.type_v = 0  # GGML_TYPE_F32
    flash = llama.LLAMA_FLASH_ATTN_TYPE_ENABLED, llama.LLAMA_FLASH_ATTN_TYPE_DISABLED
    options.flash_attn_type = flash[what != "flash"]
    if what in POOLING:
        options.embeddings, options.pooling_type = True, POOLING[what]
    options.swa_full = True
    context = llama.llama_init_from_model(model, options)
    if not context:
        sys.exit("no context")
    return model, context


def rows(model: object, context: object, what: str, ids: list[int]) -> np.ndarray:
    """Return the logits or the hidden row of every position, or a classifier's outputs."""
    batch = llama.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for n, token in enumerate(ids):
        batch.token[n], batch.pos[n], batch.logits[n] = token, n, 1
        batch.n_seq_id[n], batch.seq_id[n][0] = 1, 0
    if code := llama.llama_decode(context, batch):
        sys.exit(f"llama_decode returned {code}")
    if what == "scores":
        found = llama.llama_get_embeddings_seq(context, 0)
        return np.ctypeslib.as_array(found, (llama.llama_model_n_cls_out(model),)).copy()
    if what == "hidden":
        size = llama.llama_model_n_embd(model)
        found = [llama.llama_get_embeddings_ith(context, n) for n in range(len(ids))]
        return np.stack([np.ctypeslib.as_array(row, (size,)) for row in found])
    size = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    found = [llama.llama_get_logits_ith(context, n) for n in range(len(ids))]
    return np.stack([np.ctypeslib.as_array(row, (size,)) for row in found])


def ids_of(model: object, text: str) -> np.ndarray:
    """Return the ids of a text, with all that the file puts around it."""
    data, most = text.encode(), 4 * len(text) + 8
    found = (llama.llama_token * most)()
    vocabulary = llama.llama_model_get_vocab(model)
    count = llama.llama_tokenize(vocabulary, data, len(data), found, most, True, False)
    return np.array(found[:count])


if __name__ == "__main__":
    path, out, what, *ids = sys.argv[1:]
    llama.llama_log_set(log, ctypes.c_void_p(0))
    llama.llama_backend_init()
    model, context = opened(path, what)
    if what == "ids":
        np.save(out, ids_of(model, *ids))
    else:
        np.save(out, rows(model, context, what, [int(one) for one in ids]))
