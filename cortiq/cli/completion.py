"""`cortiq completion`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = {
    "bash": 'eval "$(cortiq completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(cortiq completion zsh)"   # in ~/.zshrc',
    "fish": "cortiq completion fish | source   # in ~/.config/fish/config.fish",
}


@click.command(
    epilog="\b\nTo have it in every shell, add the line to the shell's own file:\n  "
    + "\n  ".join(SHELLS.values())
)
@click.argument("shell", type=click.Choice(list(SHELLS)))
def completion(shell: str) -> None:
    """Print the script that completes commands for a shell.

    Options and models are completed too.
    """
    import cortiq.cli.bash_completion  # noqa: F401 - ours, in place of click's
    from cortiq.cli.main import COMPLETION_VARIABLE, PROGRAM, cli

    made = get_completion_class(shell)
    assert made is not None
    click.echo(made(cli, {}, PROGRAM, COMPLETION_VARIABLE).source())
