"""Places and tensor names of draft heads in files: one table for all families."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from cortiq.errors import RequestError, shown
from cortiq.ir.heads import CASCADE, CHAIN, DFLASH, DSPARK, EAGLE3, MIMO, MTP, STACK
from cortiq.models.heads import HeadModule, HeadPlan

OFF, AUTO = "off", "auto"
FROM_FILES = DFLASH, DSPARK, EAGLE3
"""Drafters whose file or folder is named behind a colon."""
BLOCKS = DFLASH, DSPARK
"""Those of them that are block drafters."""
NORMED, RAW = "post", "raw"
"""The trunk's rows that modules take: after its last norm, or the last layer's output."""
MOST_MODULES = 16


def split_heads_option(text: str) -> tuple[str, dict[str, str]]:
    """Split the option `heads` into the model's own draft head, and folders of further drafters.

    `dspark` without a colon is the model's own.

    Raises
    ------
    RequestError : it names two draft heads, or two block drafters.
    """
    found = dict[str, str]()
    for name in FROM_FILES:
        rest = r":(.*)" if name == DSPARK else r"(?::(.*))?"
        if parts := re.fullmatch(rf"(?:(.*),)?{name}{rest}", text, re.DOTALL):
            text, found[name] = parts[1] or "", parts[2] or ""
    named = [name for name in BLOCKS if name in found or name == text]
    if len(named) > 1:
        what = f"a model is loaded with one block drafter, not with {' and '.join(named)}"
        raise RequestError(what, where="heads")
    if EAGLE3 in found and text:
        what = f"a model is loaded with one draft head, not with {text} and {EAGLE3}"
        raise RequestError(what, where="heads", hint=f"heads='{EAGLE3}:{found[EAGLE3]}'")
    return text or OFF, found


def parse_head_option(text: str) -> tuple[str, str]:
    """Parse the option `heads`: a draft head, and the rows it takes if given.

    Raises
    ------
    RequestError : there is no such head, or there are no such rows.
    """
    name, colon, rows = text.partition(":")
    known = name in (OFF, AUTO, MTP, MIMO, DSPARK) and (not colon or rows in (NORMED, RAW))
    if not known or (colon and name in (OFF, DSPARK)):
        hint = (
            f"{OFF}, {AUTO}, {MTP}, {MIMO}, {DSPARK}, {EAGLE3}:PATH or HEAD,{DFLASH}:PATH or "
            f"HEAD,{DSPARK}:PATH; after the colon of a head {NORMED} or {RAW}, the rows it takes"
        )
        raise RequestError(f"there is no draft head {shown(text)}", where="heads", hint=hint)
    return name, rows


def find_plan(text: str, layers: int, has: Callable[[str], bool]) -> HeadPlan | None:
    """Find the draft head of a file, if it has the one that is asked for.

    Parameters
    ----------
    text : the option `heads`.
    layers : of the trunk.
    has : whether there is a tensor of this canonical name.
    """
    name, rows = parse_head_option(text)
    if name in (OFF, DSPARK):
        return None
    last = f"layers.{layers - 1}.out"
    for style, source, modules in _known(layers, has):
        if name == AUTO or (name == MIMO) == (style == STACK):
            chosen = {NORMED: "hidden", RAW: last}.get(rows, source or last)
            return HeadPlan(style, chosen, modules)
    return None


def _known(
    layers: int, has: Callable[[str], bool]
) -> Iterator[tuple[str, str, tuple[HeadModule, ...]]]:
    """Yield each style, the rows it takes by default (empty: the last layer's), and its modules.

    Qwen 3 Next and 3.5 write `mtp.fc`, Qwen 3.8 Flash Next a matrix for each half, Nemotron H two
    layers, each half a block; DeepSeek V3 and GLM 4.5 write modules as layers after the trunk's,
    whose default is what public servers do, and GGUF files hold every family's like that; MiMo V2
    has a list below `model.mtp`, and the general module has its joining matrix there.
    """
    if has("mtp.fc.weight"):
        norms = "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden"
        table = "mtp.embed_tokens" if has("mtp.embed_tokens.weight") else ""
        yield CHAIN, "hidden", (HeadModule("mtp.layers.0", *norms, "mtp.fc", "mtp.norm", table),)
    if has("mtp.fc_hidden.weight"):
        norms = "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden"
        how = {"project": "mtp.fc_hidden", "embedding_project": "mtp.fc_embedding"}
        mixer = "mtp.hyper_connection_mixer"
        yield CHAIN, "", (HeadModule("mtp.layers.0", *norms, norm=mixer, **how),)
    if has("mtp.layers.1.final_layernorm.weight"):
        one, two = "mtp.layers.0", "mtp.layers.1"
        ends = f"{one}.enorm", f"{one}.hnorm", f"{one}.eh_proj", f"{two}.final_layernorm", "", ""
        yield CHAIN, "hidden", (HeadModule(one, *ends, two),)
    if has("model.mtp.eh_proj.weight"):
        parts = (f"model.mtp.{part}" for part in ("enorm", "hnorm", "eh_proj", "norm"))
        yield CHAIN, "", (HeadModule("model.mtp.layers.0", *parts),)
    after = f"model.layers.{layers}.final_layernorm.weight"  # as GGUF files have MiMo's layers
    norm = "final_layernorm" if has(after) else "shared_head.norm"
    own = _modules("model.layers", layers, norm, has)
    if own and has(after):
        yield STACK, "", own
    elif own:
        yield CASCADE if len(own) > 1 else CHAIN, "hidden", own
    own = _modules("model.mtp.layers", 0, "final_layernorm", has)
    if own:
        yield STACK, "", own


def _modules(
    before: str, first: int, norm: str, has: Callable[[str], bool]
) -> tuple[HeadModule, ...]:
    """Return the modules `BEFORE.N`, from N = first on, each with all of its tensors."""
    found = []
    for n in range(first, first + MOST_MODULES):
        layer = f"{before}.{n}"
        if not has(f"{layer}.eh_proj.weight"):
            break
        parts = (f"{layer}.{part}" for part in ("enorm", "hnorm", "eh_proj", norm))
        own = (f"{layer}.{part}" for part in ("embed_tokens", "shared_head.head"))
        found.append(HeadModule(layer, *parts, *(x if has(f"{x}.weight") else "" for x in own)))
    return tuple(found)


def synthetic_plan(text: str, layers: int) -> HeadPlan | None:
    """Return the draft head of a formula model: a chain, or for `mimo` three modules."""
    name, _ = parse_head_option(text)
    first = "model.mtp.layers.{}.eh_proj.weight" if name == MIMO else "mtp.fc.weight"
    there = {first.format(k) for k in range(3)}
    return find_plan(text, layers, there.__contains__) if name not in (OFF, AUTO, DSPARK) else None
