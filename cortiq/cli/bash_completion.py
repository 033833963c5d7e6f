"""Completion of words with colons in bash, in place of click's; importing this installs it."""

from __future__ import annotations

import os

from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    split_arg_string,
)


class BashCompletion(BashComplete):
    """Completion for bash, whose words end at a colon, while names of models may have one.

    The line so far is passed, too; of a completion, what stands before a colon is left out.
    """

    source_template = BashComplete.source_template.replace(
        "env ", 'env COMP_LINE="${COMP_LINE:0:COMP_POINT}" COMP_WORDBREAKS="$COMP_WORDBREAKS" ', 1
    )
    _written = ""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the one to complete, and that one."""
        line = os.environ.get("COMP_LINE", "")
        if not line:
            return super().get_completion_args()
        words = split_arg_string(line)
        incomplete = "" if line[-1].isspace() else words.pop()
        if ":" in os.environ.get("COMP_WORDBREAKS", ""):
            self._written = incomplete[: incomplete.rfind(":") + 1]
        return words[1:], incomplete

    def format_completion(self, item: CompletionItem) -> str:
        """Return a completion as the script reads it."""
        return f"{item.type},{item.value.removeprefix(self._written)}"


add_completion_class(BashCompletion)
