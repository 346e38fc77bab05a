"""The command `evertick`. `import evertick` loads nothing of it. `exits.py` has the exit codes."""

from evertick.cli.root import cli

__all__ = ["cli", "main"]


def main() -> None:
    cli(prog_name="evertick")
