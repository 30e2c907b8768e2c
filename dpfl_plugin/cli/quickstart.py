"""`dpfl quickstart`: the first examples, from the installed package alone."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import textwrap
from contextlib import ExitStack
from importlib import resources
from pathlib import Path
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table

from dpfl_plugin.api import quickstart as api
from dpfl_plugin.api import quickstart_picture
from dpfl_plugin.api.quickstart import HOSPITALS, TWO_LABELS, Part
from dpfl_plugin.cli.run import EXIT_CODES, stopping
from dpfl_plugin.errors import ConfigError

SEEDS: Final = {HOSPITALS: 5, TWO_LABELS: 3}  # of each file: together they take less than a minute
PICTURE: Final = "quickstart.png"
WIDTH: Final = 100


def quickstart(settings: list[str], out: Path | None, seeds: int | None, copy: Path | None, *, as_json: bool) -> int:
    """Run the two configurations that ship with the package, for each seed; returns an exit code of `dpfl run`.

    An interrupted run goes on: there is nothing that a newcomer should have to add for that.

    Args:
        out: folder of run folders, and of the picture. seeds: of both files, see `SEEDS`. copy: folder to copy
            the configurations to, instead.

    Raises:
        ConfigError: a file is in ``copy`` already, or a setting is wrong.
    """
    with ExitStack() as held:
        folder = resources.files("dpfl_plugin") / "templates" / "quickstart"
        paths = [held.enter_context(resources.as_file(folder / f"{name}.yaml")) for name in SEEDS]
        if copy is not None:
            return _copy(paths, copy)
        where = Path("runs") if out is None else out
        stop = held.enter_context(stopping())
        given = [*settings, f"out={json.dumps(str(where))}"]
        try:
            parts = [
                api.measured(path, range(seeds or few), given, tell=_tell, stop=stop)
                for path, few in zip(paths, SEEDS.values(), strict=True)
            ]
        except KeyboardInterrupt:
            print("dpfl: interrupted; what is done is saved. Run the same command again to continue.", file=sys.stderr)
            return EXIT_CODES["interrupted"]
    quickstart_picture.draw(where / PICTURE, parts)
    if as_json:
        print(api.to_json(parts))
        return 0
    for part in parts:
        _show(part)
    print(
        f"Picture: {where / PICTURE}\nEach run's folder, with its privacy statement: {where}/*/*/privacy.md\n"
        "Next: `dpfl quickstart --copy .` gives you both configurations to change; `dpfl init my-project` makes a "
        "project with made-up data."
    )
    return 0


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _show(part: Part) -> None:
    print(f"\n{api.heading(part)}\n")
    header, *rows = api.rows(part)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, name in enumerate(header):
        table.add_column(name, justify="left" if place == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    Console().print(table)
    for line in api.remarks(part):
        # A line that begins with "%" is hard to read: the number before it goes along.
        whole = line.replace(" %", "\N{NO-BREAK SPACE}%")
        filled = textwrap.fill(whole, WIDTH, initial_indent="* ", subsequent_indent="  ")
        print(filled.replace("\N{NO-BREAK SPACE}", " "))


def _copy(paths: list[Path], folder: Path) -> int:
    targets = [folder / path.name for path in paths]
    for target in targets:
        if target.exists():
            raise ConfigError(f"--copy {target}: the file exists, and was left as it is. Use another folder.")
    folder.mkdir(parents=True, exist_ok=True)
    for path, target in zip(paths, targets, strict=True):
        with target.open("xb") as file, path.open("rb") as source:
            shutil.copyfileobj(source, file)
    print("\n".join(map(str, targets)) + f"\nNext: dpfl run {shlex.quote(str(targets[0]))}")
    return 0
