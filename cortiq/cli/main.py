"""`cortiq`: runs a command and turns errors into messages and exit codes.

Exit codes: 0 done; 2 an error of the user or the model, with a message on stderr; 130 interrupted;
141 stdout was closed by its reader.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NoReturn

import click

from cortiq.cli.kit import kit_command
from cortiq.command_names import COMMANDS, GROUPS, KIT
from cortiq.errors import BackendError, CortiqError, OptionError, RequestError, brief, printable
from cortiq.option_names import SYNONYMS

INTERRUPTED = 130
NO_READER = 141
PROGRAM, COMPLETION_VARIABLE = "cortiq", "_CORTIQ_COMPLETE"
TRACEBACK_VARIABLE = "CORTIQ_TRACEBACK"
HELP_SHOWN: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())
"""What click 8.2 raises for a command without arguments that shows its help; 8.1 raises none."""


ELSEWHERE = {
    "show": "inspect", "info": "inspect", "ps": "list", "ls": "list", "models": "list",
    "remove": "rm", "create": "pull", "download": "pull", "fetch": "pull", "quantize": "convert",
    "eval": "score", "perplexity": "score", "plugins": "backends", "devices": "backends",
}  # fmt: skip
"""Commands of other programs, and ours that users mean by them."""


class LazyGroup(click.Group):
    """A group that imports a command on use; its help imports none."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the built-in commands; listing loads no plugins, whose commands are found by
        name.
        """
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a built-in command, or look it up among the plugins'."""
        if cmd_name in KIT:
            return kit_command(cmd_name, COMMANDS[cmd_name])
        if cmd_name in COMMANDS:
            return getattr(import_module(f"cortiq.cli.{cmd_name}"), cmd_name)
        from cortiq.plugins import default_plugins

        plugins = default_plugins()
        if cmd_name in plugins.commands:
            return plugins.commands[cmd_name]
        near = get_close_matches(cmd_name, [*COMMANDS, *plugins.commands], 1)
        near = [ELSEWHERE[cmd_name]] if cmd_name in ELSEWHERE else near
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise click.UsageError(f"No such command {cmd_name!r}.{hint}", ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands from the table."""
        width = max(map(len, COMMANDS))
        for heading, names in GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), COMMANDS[name]) for name in names])


def _version(ctx: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if not wanted:
        return
    import cortiq

    click.echo(f"cortiq {cortiq.__version__}")
    ctx.exit()


def _use_plugins(ctx: click.Context, parameter: click.Parameter, files: tuple[str, ...]) -> None:
    """Load plugin files before the command is looked up: it may be one of theirs.

    A file that cannot be loaded ends any command: the user named it.
    """
    for file in files:
        if not os.path.isfile(file):
            raise CortiqError("there is no such file", where=f"--plugin {file}")
    if files and not ctx.resilient_parsing:
        from cortiq.plugins import check_requested, default_plugins, use_files

        use_files(files)
        check_requested(default_plugins())


def _show_tracebacks(ctx: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if wanted:
        os.environ[TRACEBACK_VARIABLE] = "1"


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="MODEL is a known name (`cortiq list --known`), a GGUF file, a Hugging Face folder, "
    "hf:ORGANISATION/NAME:FILES@REVISION, or synthetic:NAME. Plugins may bring further commands. "
    "Environment: CORTIQ_CACHE is the folder of models; CORTIQ_PLUGINS lists the installed "
    "plugins to load (comma-separated; all by default); CORTIQ_BACKEND, CORTIQ_MAX_TOKENS "
    "and so on set the flags of the commands, whose help names them.",
)
@click.option(
    "--plugin", multiple=True, metavar="FILE.py", expose_value=False, callback=_use_plugins,
    help="Load this file as a plugin, too; may be repeated.",
)  # fmt: skip
@click.option(
    "--traceback", is_flag=True, expose_value=False, callback=_show_tracebacks,
    help="Show the traceback of an error.  [CORTIQ_TRACEBACK]",
)  # fmt: skip
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version,
    help="Show the version.",
)  # fmt: skip
def cli() -> None:
    """Run language models, with the same bits on every backend."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    code = CortiqError.exit_code
    try:
        _prepare_streams()
        if COMPLETION_VARIABLE in os.environ:
            sys.exit(_complete(os.environ[COMPLETION_VARIABLE]))
        code = _run(list(sys.argv[1:] if arguments is None else arguments))
        if arguments is None:  # the process ends now
            _ignore_interrupts()
        sys.stdout.flush()
    except BrokenPipeError:
        code = NO_READER
    except (
        OSError
    ) as error:  # a full disk behind stdout or stderr, or an unexpected error of a file
        _print_error(f"{error.filename or 'output'}: {error.strerror or error}")
    except CortiqError as error:
        _print_error(_error_text(error))
    except KeyboardInterrupt:  # before or after the command
        code = INTERRUPTED
    except MemoryError as error:
        _print_error(f"there is not enough memory: {error or 'nothing could be allocated'}")
    _flush_streams()
    sys.exit(code)


def _complete(asked: str) -> int:
    """Answer a shell's completion request; return the exit code."""
    from click.shell_completion import shell_complete

    import cortiq.cli.bash_completion  # noqa: F401 - ours, in place of click's

    return shell_complete(cli, {}, PROGRAM, COMPLETION_VARIABLE, asked)


def _prepare_streams() -> None:
    """Make any text printable, and refuse a closed stdout, which would lose the result.

    A closed descriptor's number would go to the next opened file, such as a model's.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)  # the lowest free number: this stream's own
            if name == "stdout":
                raise CortiqError("is closed: there is nowhere to print to", where=name)
            if name == "stderr":
                sys.stderr = os.fdopen(number, "w")
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _ignore_interrupts() -> None:
    """Keep the exit code of a command that has ended: Ctrl-C while Python goes changes nothing."""
    with contextlib.suppress(ValueError):  # not the main thread, where no signal arrives
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _flush_streams() -> None:
    """Flush stdout and stderr so that Python's own flush at exit cannot fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            os.dup2(nowhere, stream.fileno())


def _print_error(sentence: str) -> None:
    """Print an error on stderr, if possible."""
    with contextlib.suppress(OSError):
        click.echo(f"error: {printable(sentence)}", err=True)


def _error_text(error: CortiqError) -> str:
    """Return an error's message for the command line: flags for options, a traceback if
    requested.
    """
    text = str(error)
    option = error.option if isinstance(error, OptionError) else error.where
    if isinstance(error, RequestError) and option in _options():
        from cortiq.options import flag

        text = text.replace(option, flag(option), 1)
    if os.environ.get(TRACEBACK_VARIABLE):
        return f"{text}\n{''.join(traceback.format_exception(error))}".rstrip()
    if error.__cause__ is not None and isinstance(error, BackendError):
        text += "\n  `cortiq --traceback ...` shows where"
    return text


def _show(error: click.ClickException) -> None:
    """Show an error of the arguments like any other, with the command that lists what there is."""
    if isinstance(error, HELP_SHOWN):
        error.show()
        return
    text = brief(error.format_message())
    text = text[:1].lower() + text[1:]
    context = getattr(error, "ctx", None)
    if context is not None:
        what = "lists its commands" if context.command is cli else "shows its arguments"
        text += f"\n  {context.command_path} --help {what}"
    _print_error(text)


def _options() -> set[str]:
    """Return the Python names of the options of loading, generating and scoring."""
    from cortiq.options import GenerateOptions, LoadOptions, ScoreOptions, specs

    return {name for kind in (GenerateOptions, LoadOptions, ScoreOptions) for name in specs(kind)}


def _misplaced_option(error: click.NoSuchOption) -> click.UsageError:
    """Return the error with the right place or name of an option."""
    name = error.option_name
    if error.ctx is None:
        return error
    if not any(name in parameter.opts for parameter in cli.params):
        return _renamed_option(error, error.ctx)
    where = f"{name} goes before the command: cortiq {name} ... {error.ctx.info_name}"
    return click.UsageError(f"{error.message} {where}", error.ctx)


def _renamed_option(error: click.NoSuchOption, context: click.Context) -> click.UsageError:
    """Return the error with our name for another program's option."""
    named = {str(p.name): p for p in context.command.params}
    same = SYNONYMS.get(error.option_name.lstrip("-").replace("-", "_"), "")
    option = named.get(same) or named.get(f"{same}s")  # `cortiq serve` takes several models
    if option is None:
        return error
    hint = f"Did you mean {option.opts[0]}?"
    if isinstance(option, click.Argument):
        usage = f"{context.command_path} {option.make_metavar(context)}"
        hint = f"The {same} is given without a flag: {usage} ..."
    return click.UsageError(f"{error.message} {hint}", context)


def _run(arguments: list[str]) -> int:
    """Run a command; return its exit code."""
    try:
        with cli.make_context("cortiq", arguments) as context:
            cli.invoke(context)
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.NoSuchOption as error:
        _show(_misplaced_option(error))
        return error.exit_code
    except click.ClickException as error:
        _show(error)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("", err=True)
        return INTERRUPTED
    return 0
