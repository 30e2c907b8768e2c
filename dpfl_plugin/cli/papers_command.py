"""The command that repeats papers; it imports late, as all do."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from dpfl_plugin.errors import ConfigError


class Where(enum.Enum):
    """Where runs are made."""

    local = "local"
    slurm = "slurm"


def papers(
    paper: Annotated[str | None, typer.Argument(metavar="PAPER", help="Of the list; left out: the list.")] = None,
    figure: Annotated[str | None, typer.Option(metavar="N", help="One figure (default: all of it).")] = None,
    table: Annotated[str | None, typer.Option(metavar="N", help="One table.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer seeds, places or rounds: the direction, in minutes.")
    ] = False,
    seeds: Annotated[
        str | None, typer.Option(metavar="N[,N...]", help="Only these of its seeds, with all rounds, e.g. 0.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Of runs, numbers, pages and pictures.")] = Path("runs/papers"),
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Data files (default: $DPFL_DATA, else ~/.cache/dpfl).")
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at the same time (default: one for each core).")] = None,
    device: Annotated[
        str | None, typer.Option(metavar="NAME", help="Torch device of all runs, e.g. cuda (default: cpu).")
    ] = None,
    on: Annotated[Where, typer.Option("--on", help="This machine, or Slurm.")] = Where.local,
    json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON, and nothing else, on stdout.")
    ] = False,
) -> None:
    """List the figures and tables of papers, or repeat them: theirs, ours, the proven epsilon, a page and a picture.

    The same command continues after an interruption. Exit codes: 0 done, 1 some failed or missing, 2 bad input, 4
    interrupted.
    """
    from dpfl_plugin.cli import papers as command

    if paper is None:
        if figure is not None or table is not None:
            raise ConfigError("--figure and --table need a PAPER: dpfl papers lists them.")
        command.list_papers(as_json=json)
        return
    some = [] if seeds is None else _seeds(seeds)
    if on is Where.slurm:
        code = command.submit_papers(
            paper, figure=figure, table=table, quick=quick, seeds=some, device=device, out=out, data=data, jobs=jobs
        )
    else:
        code = command.run_papers(
            paper,
            figure=figure,
            table=table,
            quick=quick,
            seeds=some,
            device=device,
            out=out,
            data=data,
            jobs=jobs,
            as_json=json,
        )
    raise typer.Exit(code)


def _seeds(given: str) -> list[int]:
    try:
        return [int(one) for one in given.split(",")]
    except ValueError:
        raise ConfigError(f"--seeds: {given!r} must be whole numbers with commas between, e.g. 0 or 0,1.") from None
