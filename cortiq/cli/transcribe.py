"""`cortiq transcribe`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from cortiq.cli.flags import ADAPTERS, grouped_command, options_of
from cortiq.cli.generate import load_model
from cortiq.cli.inputs import GIVEN_FILE, MODEL
from cortiq.cli.render import echo_piece, print_json
from cortiq.hearing.subtitles import srt, timed_lines, vtt
from cortiq.options import LoadOptions

if TYPE_CHECKING:
    from cortiq.model.transcribe import Transcription

FORMATS: Mapping[str, Callable[[Transcription], str]] = {
    "text": lambda made: made.text + "\n",
    "srt": lambda made: srt(made.parts),
    "vtt": lambda made: vtt(made.parts),
}


@grouped_command()
@click.argument("model", type=MODEL)
@click.argument("file", type=GIVEN_FILE)
@click.option("--language", metavar="CODE", help="Language, as en; the model tells without it.")
@click.option("--translate", is_flag=True, help="Translate to English.")
@click.option(
    "--timestamps", is_flag=True,
    help="Write when each part is said; srt and vtt always do.",
)  # fmt: skip
@click.option(
    "--format", "form", type=click.Choice([*FORMATS, "json"]), default="text",
    help="Form of the output; srt and vtt are subtitles.  [default: text]",
)  # fmt: skip
@click.option(
    "--no-fallback", is_flag=True,
    help="Keep a text that repeats or is a guess: no higher temperature, no silence.",
)  # fmt: skip
@click.option("-p", "--prompt", default="", metavar="TEXT", help="Text that came before.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: --format json.")
@options_of(LoadOptions, without=ADAPTERS)
def transcribe(
    model: str,
    file: str,
    language: str | None,
    translate: bool,
    timestamps: bool,
    form: str,
    no_fallback: bool,
    prompt: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Transcribe the speech in an audio file.

    FILE is WAV, or FLAC, Ogg or MP3 with the package soundfile. The model is a Whisper model.
    """
    form = "json" if as_json else form
    timed = timestamps or form in ("srt", "vtt")
    task = "translate" if translate else "transcribe"
    with load_model(model, options) as opened:
        made = opened.transcribe(
            file, language=language, task=task, timestamps=timed, prompt=prompt,
            **({"fallback": None} if no_fallback else {}),
        )  # fmt: skip
    if form == "json":
        print_json(transcription_object(made))
    else:
        text = form == "text" and timestamps
        echo_piece(timed_lines(made.parts) if text else FORMATS[form](made))


def transcription_object(made: Transcription) -> dict[str, Any]:
    """Return a transcription as a JSON object."""
    parts = [
        {"start": part.start, "end": part.end, "text": part.text, "token_ids": part.token_ids}
        for part in made.parts
    ]
    return {
        "text": made.text, "language": made.language, "task": made.task,
        "duration": made.duration, "parts": parts,
        "digests": [one.digest for one in made.generations],
        "scores": [asdict(one) for one in made.scores],
    }  # fmt: skip
