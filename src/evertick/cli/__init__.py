"""The command `evertick`: one file per group of commands, nothing that `import evertick` would load.

Exit codes: 0; 1 for what went wrong; 2 for what was written wrongly; 130 after Ctrl-C; 141 when the reader of a pipe
has gone. `run` has two more of its own (75, 70).
"""

from evertick.cli.root import cli

__all__ = ["cli", "main"]


def main() -> None:
    cli(prog_name="evertick")
