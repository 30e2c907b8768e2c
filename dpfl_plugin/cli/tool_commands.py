"""The commands that tell of an installation and of files' keys: they import late, as all do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

TOOLS = "Plugins and this machine"


def add_to(app: typer.Typer) -> None:
    """Register the commands; after all others, so that the help ends with them."""
    app.command(rich_help_panel=TOOLS)(doctor)
    app.command(rich_help_panel=TOOLS)(schema)


def doctor(
    json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON, and nothing else, on stdout.")
    ] = False,
    slurm: Annotated[
        bool, typer.Option("--slurm", help="Whether this job of Slurm's, its node and --out are fit for runs.")
    ] = False,
    out: Annotated[Path, typer.Option(help="With --slurm: the folder of runs.")] = Path("runs"),
) -> None:
    """What is installed, and what is wrong; under mpirun, of every rank: device, latency, bandwidth.

    Exit codes: 0 nothing is wrong, 1 something is.
    """
    if slurm:
        from dpfl_plugin.cli.node import check_node

        raise typer.Exit(check_node(out, as_json=json))
    from dpfl_plugin.cli.doctor import doctor as run_doctor

    raise typer.Exit(run_doctor(as_json=json))


def schema() -> None:
    """JSON schema of configuration files, for editors."""
    import json

    from dpfl_plugin.config.load import json_schema

    print(json.dumps(json_schema(), indent=2))
