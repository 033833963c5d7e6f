"""`cortiq list`."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import click

from cortiq.cli.render import byte_count, counted, note, print_json, print_table


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--known", is_flag=True, help="List the names that can be pulled, instead.")
def list(as_json: bool, known: bool) -> None:
    """List the models in the cache.

    Interrupted downloads are listed, too: `cortiq pull` resumes them, and `cortiq rm --unfinished`
    removes them; `cortiq rm --kept` removes kept weights. The kind is "chat", "base" (no chat
    template: it continues texts), "speech" (for `cortiq transcribe`) or "encoder" (embeddings).
    """
    from cortiq.formats.cache import models_folder
    from cortiq.formats.fetch import list_cached, partial_downloads, size_of
    from cortiq.formats.kept_folder import kept_files, kept_folder

    if known:
        _list_known(as_json)
        return

    sizes = {name: size_of(path) for name, path in list_cached().items()}
    parts = partial_downloads()
    if as_json:
        models = [
            {"name": n, "kind": _kind(path), "bytes": sizes[n], "path": str(path),
             "licence": _licence(n), "commit": _commit(n)}
            for n, path in list_cached().items()
        ]  # fmt: skip
        kept = [{"path": str(k.path), "bytes": k.nbytes, "of": k.source} for k in kept_files()]
        print_json(
            {"folder": str(models_folder()), "models": models, "unfinished": parts, "kept": kept}
        )
        return
    rows = [(n, _kind(path), byte_count(sizes[n]), str(path)) for n, path in list_cached().items()]
    if rows:
        print_table(("model", "kind", "size", "path"), rows, whole=True)
    for name, size in parts.items():
        note(f"unfinished: {name}, {byte_count(size)}")
    if kept_sizes := [entry.nbytes for entry in kept_files()]:
        files = f"{counted(len(kept_sizes), 'file')}, {byte_count(sum(kept_sizes))}"
        note(f"packed weights, kept for faster starts: {files} in {kept_folder()}")
    if not sizes:
        note(f"no models in {models_folder()}; `cortiq list --known` shows what can be pulled")


def _kind(path: Path) -> str:
    """Return what a model is for, as far as a look at its files tells."""
    from cortiq.formats.chat_templates import gguf_architecture, has_chat_template
    from cortiq.formats.ctranslate2 import is_ctranslate2
    from cortiq.formats.ggml_whisper import is_ggml_whisper
    from cortiq.models import bert, llama_bidirec, modernbert, nomic_bert, whisper

    if has_chat_template(path):
        return "chat"
    if is_ctranslate2(path) or is_ggml_whisper(path):
        return "speech"
    architecture = gguf_architecture(path)
    with suppress(OSError, ValueError, AttributeError):
        architecture = json.loads((path / "config.json").read_bytes()).get("model_type")
    if architecture in whisper.ARCHITECTURES:
        return "speech"
    encoders = (bert, modernbert, nomic_bert, llama_bidirec)
    return "encoder" if any(architecture in one.ARCHITECTURES for one in encoders) else "base"


def _commit(name: str) -> str | None:
    """Return the commit at which a model of the hub is pinned."""
    from cortiq.formats import hub

    return hub.origin(name).get("commit") if hub.is_hub_name(name) else None


def _licence(name: str) -> str | None:
    from cortiq.formats.fetch import HUB_MODELS, KNOWN_MODELS, full_name

    licences = {known: model.licence for known, model in KNOWN_MODELS.items()}
    licences |= {full_name(known): model.licence for known, model in HUB_MODELS.items()}
    return licences.get(name)


def _list_known(as_json: bool) -> None:
    """List the known names: size, licence, source."""
    from cortiq.formats.fetch import HUB_MODELS, KNOWN_MODELS

    rows = [(m.name, m.total / 1e9, m.licence, m.pieces[0].package) for m in KNOWN_MODELS.values()]
    rows += [(m.name, m.size, m.licence, m.source) for m in HUB_MODELS.values()]
    if as_json:
        names = ("name", "gigabytes", "licence", "source")
        print_json({"known": [dict(zip(names, row, strict=True)) for row in rows]})
        return
    shown = [(name, f"{size:.2f} GB", licence, source) for name, size, licence, source in rows]
    print_table(("name", "size", "licence", "source"), shown, whole=True)
