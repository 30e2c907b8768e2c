"""`dpfl quickstart`: the first example, from the installed package alone."""

from __future__ import annotations

import shutil
import sys
from importlib import resources
from pathlib import Path
from typing import Final

from dpfl_plugin.cli.run import Options, run_file
from dpfl_plugin.errors import ConfigError

NAME: Final = "quickstart.yaml"


def quickstart(settings: list[str], out: Path | None, copy: Path | None, *, as_json: bool) -> int:
    """Run the configuration that ships with the package; returns the exit code of `dpfl run`.

    An interrupted run goes on: there is nothing that a newcomer should have to add for that.

    Args:
        out: folder of run folders, as in `dpfl run`.
        copy: where to put a copy of the configuration, instead of running it.

    Raises:
        ConfigError: ``copy`` exists, or a setting is wrong.
    """
    with resources.as_file(resources.files("dpfl_plugin.cli") / "templates" / "quickstart" / NAME) as path:
        if copy is not None:
            return _copy(path, copy)
        code = run_file(path, settings, Options(out=out, resume=True, as_json=as_json))
    if code == 0:
        print(
            f"\nThe configuration: {path}\nNext: `dpfl quickstart --copy {NAME}` gives you a copy to change; "
            "`dpfl init my-project` makes a project with data of its own.",
            file=sys.stderr if as_json else sys.stdout,
        )
    return code


def _copy(path: Path, target: Path) -> int:
    if target.is_dir():
        target = target / NAME
    try:
        with target.open("xb") as file, path.open("rb") as source:
            shutil.copyfileobj(source, file)
    except FileExistsError as error:
        raise ConfigError(f"--copy {target}: the file exists, and was left as it is. Use another name.") from error
    print(f"{target}\nNext: dpfl run {target}")
    return 0
