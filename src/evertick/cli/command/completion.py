"""The command completion: the script that makes a shell ask evertick how a word could go on."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from evertick.cli.show.output import as_json_option, print_json

__all__ = ["COMPLETE_VARIABLE", "completion"]

COMPLETE_VARIABLE = "_EVERTICK_COMPLETE"
_PROGRAM = "evertick"
_SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS), metavar="SHELL")
@as_json_option
@click.pass_context
def completion(ctx: click.Context, shell: str, as_json: bool) -> None:
    """Print the script that completes evertick in a shell.

    SHELL is bash, zsh or fish.

    Load it in the file that the shell reads at its start. It completes commands, flags, the keys of schedules and the
    ids of recent runs.

    \b
    Example:
      evertick completion bash >> ~/.bashrc
      evertick completion zsh >> ~/.zshrc
      evertick completion fish > ~/.config/fish/completions/evertick.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(ctx.find_root().command, {}, _PROGRAM, COMPLETE_VARIABLE).source()
    if as_json:
        print_json({"shell": shell, "script": script})
    else:
        click.echo(script)
