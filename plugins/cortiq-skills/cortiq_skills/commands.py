"""`cortiq skill`: skills of donors, what is in them, and where texts belong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cortiq.cli.inputs import FILE, MODEL, OUT
from cortiq.cli.render import byte_count, echo, note, print_table
from cortiq.errors import RequestError
from cortiq_skills.notice import NOTICE

if TYPE_CHECKING:
    from cortiq.model.model import Model
    from cortiq_skills.record import SkillSelection


@click.group(no_args_is_help=True)
def skill() -> None:
    """Make, show and route skills.

    `cortiq generate MODEL --adapter NAME=FILE.skill` runs a model with one.
    """
    note(NOTICE)


@skill.command()
@click.argument("model", type=MODEL)
@click.argument("donor", type=MODEL)
@click.argument("out", type=OUT)
@click.option("--name", default="", help="What people call it.")
@click.option("--tensors", "family", type=click.Choice(["ffn", "attn", "all"]), default="ffn",
              show_default=True, help="Which matrices it has.")  # fmt: skip
@click.option("--layers", default="all", show_default=True, metavar="all|A-B|i,j",
              help="Of which layers.")  # fmt: skip
@click.option("--min-delta", type=click.FloatRange(0.0), default=0.0, show_default=True,
              help="Leave out matrices that change by no more than this.")  # fmt: skip
@click.option("--prompts", type=FILE, help="Texts, a line each, that it is to be chosen for.")
@click.option("--phi-layer", type=click.IntRange(0), help="Layer of their features; by default two "
              "thirds into the model.")  # fmt: skip
@click.option("--rank", type=click.IntRange(0, 16), default=2, show_default=True,
              help="Directions of its descriptor.")  # fmt: skip
@click.option("--bind", is_flag=True, help="For this very model only.")
@click.option("--backend", "-b", help="Backend that reads the prompts.")
def add(
    model: str, donor: str, out: Path, name: str, family: str, layers: str, min_delta: float,
    prompts: Path | None, phi_layer: int | None, rank: int, bind: bool, backend: str | None,
) -> None:  # fmt: skip
    """Take a DONOR's matrices in place of MODEL's; write a skill to OUT."""
    from cortiq.model.source import open_source
    from cortiq.options import LoadOptions
    from cortiq_skills.donors import graft
    from cortiq_skills.files import SUFFIX, write_skill
    from cortiq_skills.record import SkillRecord

    if out.suffix != SUFFIX:
        raise RequestError(f"a skill's file ends in {SUFFIX}", where=str(out))
    whole = LoadOptions(weight_format="f32")
    base, other = open_source(model, whole), open_source(donor, whole)
    try:
        record = SkillRecord(out.stem, name, base=base.model_hash() if bind else "",
                             provenance={"donor": other.model_hash()})  # fmt: skip
        made = graft(base, other, record, family=family, layers=layers, min_delta=min_delta)
    finally:
        base.close()
        other.close()
    found = made.skill
    if prompts is not None:
        chosen = _selection(model, prompts, phi_layer, rank, backend)
        found = replace(found, selection=chosen)
    write_skill(out, found)
    _note_skipped(made.skipped)
    echo(f"{out}: {len(found.tensors)} matrices of layers {','.join(map(str, found.layers))}")


def _note_skipped(skipped: Mapping[str, str]) -> None:
    """Note which matrices were left out, and why: many of one reason in one line."""
    for reason in dict.fromkeys(skipped.values()):
        names = [name for name, why in skipped.items() if why == reason]
        few = len(names) <= 3
        what = ", ".join(names) if few else f"{len(names)} matrices, {names[0]} to {names[-1]}"
        note(f"left out {what}: {reason}")


def _selection(
    model: str, prompts: Path, layer: int | None, rank: int, backend: str | None
) -> SkillSelection:
    """Return the descriptor of the texts of a file."""
    import cortiq
    from cortiq_skills.descriptors import fit_selection
    from cortiq_skills.features import default_layer, text_features

    texts = [line.strip() for line in prompts.read_text().splitlines() if line.strip()]
    with cortiq.load(model, backend=backend) as loaded:
        at = default_layer(loaded.program) if layer is None else layer
        features = [text_features(loaded.executable, _ids(loaded, text), at) for text in texts]
    return fit_selection(features, at, rank)


def _ids(model: Model, text: str) -> list[int]:
    return list(model.tokenizer.encode(text, add_bos=False))


@skill.command(name="list")
@click.argument("files", type=FILE, nargs=-1, required=True)
def list_(files: tuple[Path, ...]) -> None:
    """Show what skills hold."""
    from cortiq_skills.donors import skill_summary
    from cortiq_skills.files import read_skill

    rows = [dict(skill_summary(read_skill(path))) for path in files]
    print_table(tuple(rows[0]), [tuple(row.values()) for row in rows])


@skill.command()
@click.argument("model", type=MODEL)
@click.argument("specialist", type=MODEL)
@click.argument("out", type=OUT)
@click.pass_context
def export(context: click.Context, model: str, specialist: str, out: Path) -> None:
    """Write what a SPECIALIST has otherwise than MODEL to OUT, bound to MODEL."""
    context.invoke(add, model=model, donor=specialist, out=out, family="all", bind=True)


@skill.command()
@click.argument("model", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("out", type=OUT)
@click.option("--text", "texts", type=FILE, multiple=True, required=True,
              help="A text of the task; may be repeated.")  # fmt: skip
@click.option("--steps-a", type=click.IntRange(1), default=240, show_default=True,
              help="Steps in which gates of neurons are trained.")  # fmt: skip
@click.option("--steps-b", type=click.IntRange(0), default=120, show_default=True,
              help="Steps in which the last layers are polished.")  # fmt: skip
@click.option("--layers", "polished", type=click.IntRange(1), default=4, show_default=True,
              help="How many those are.")  # fmt: skip
@click.option("--chunk", type=click.IntRange(2), default=256, show_default=True,
              help="Tokens of a window.")  # fmt: skip
@click.option("--target-sparsity", type=click.FloatRange(0.0, 1.0), default=0.0, show_default=True,
              help="Share of neurons to close, if the texts allow it.")  # fmt: skip
@click.option("--aggression", type=click.FloatRange(0.0), default=1.0, show_default=True,
              help="Factor of the penalty on open neurons.")  # fmt: skip
def bake(model: Path, out: Path, texts: tuple[Path, ...], **options: float) -> None:
    """Train which neurons of the folder MODEL some texts need; write a skill to OUT.

    Takes torch and transformers.
    """
    from cortiq.model.source import open_source
    from cortiq.options import LoadOptions
    from cortiq_skills.baking import BakeOptions
    from cortiq_skills.baking import bake as baked
    from cortiq_skills.files import SUFFIX, write_skill
    from cortiq_skills.record import SkillRecord

    if out.suffix != SUFFIX:
        raise RequestError(f"a skill's file ends in {SUFFIX}", where=str(out))
    try:
        from transformers import AutoModelForCausalLM
    except ImportError as error:
        raise RequestError("takes transformers", hint="install cortiq-skills[bake]") from error
    source = open_source(str(model), LoadOptions())
    try:
        ids = [list(source.tokenizer.encode(path.read_text(), add_bos=False)) for path in texts]
    finally:
        source.close()
    trained = AutoModelForCausalLM.from_pretrained(model).float().eval()
    made = baked(trained, ids, SkillRecord(out.stem), BakeOptions(**options))  # type: ignore[arg-type]
    write_skill(out, made.skill)
    base, masked, polished = made.perplexities
    closed = 1 - sum(int(f.sum()) for f in made.keep.values()) / sum(map(len, made.keep.values()))
    echo(f"{out}: {100 * closed:.1f}% of neurons closed; perplexity {base:.3f}, under gates "
         f"{masked:.3f}, polished {polished:.3f}")  # fmt: skip


@skill.command()
@click.argument("model", type=MODEL)
@click.argument("file", type=FILE)
@click.argument("out", type=OUT)
@click.option("--force", is_flag=True, help="Although it is bound to another model.")
def apply(model: str, file: Path, out: Path, force: bool) -> None:
    """Write MODEL with a skill's matrices in place of its own to the folder OUT."""
    from cortiq_skills.applying import apply_skill

    made = apply_skill(model, file, out, force=force)
    for line in made.notes:
        note(line)
    echo(f"{made.path}: {byte_count(made.nbytes)}")


@skill.command()
@click.argument("model", type=MODEL)
@click.argument("files", type=FILE, nargs=-1, required=True)
@click.option("--prompt", "-p", required=True, help="The text.")
@click.option("--ood", type=OUT, help="Folder that keeps the text if it is novel.")
@click.option("--backend", "-b", help="Backend that reads it.")
def route(
    model: str, files: tuple[Path, ...], prompt: str, ood: Path | None, backend: str | None
) -> None:
    """Show which of some skills a text belongs to."""
    import cortiq
    from cortiq_skills.features import text_features
    from cortiq_skills.files import read_skill
    from cortiq_skills.novel import NovelTexts
    from cortiq_skills.router import calibrate, decide

    held = [read_skill(path) for path in files]
    known = {one.record.id: one.selection for one in held if one.selection is not None}
    with cortiq.load(model, backend=backend) as loaded:
        ids = _ids(loaded, prompt)
        layers = {one.layer for one in known.values()}
        features = {at: text_features(loaded.executable, ids, at) for at in layers}
    calibration = calibrate(known)
    decision = decide(known, features, calibration)
    if decision.ranked:
        rows = [(e.id, f"{e.raw:.4g}", f"{e.relative:.4f}") for e in decision.ranked]
        print_table(("skill", "error", "relative"), rows)
    novel = "" if decision.novelty is None else f" ({decision.novelty:.3f})"
    echo(f"{decision.skill or 'none'}, {'novel' if decision.is_novel else 'known'}{novel}")
    if ood is not None:
        NovelTexts(ood).saw(decision, ids, prompt, calibration is not None)
