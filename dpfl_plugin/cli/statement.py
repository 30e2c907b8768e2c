"""`dpfl statement`: a page to sign, on stdout or in a new file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown

from dpfl_plugin.api.signing import statement_to_sign
from dpfl_plugin.errors import ConfigError


def write_statement(folder: Path, names: Sequence[str], study: str, out: Path | None) -> None:
    """Print the page, as it looks in a terminal and as Markdown elsewhere, or write it to ``out`` and say so.

    Raises:
        ConfigError: a --name has another form, or ``out`` exists; and as `statement_to_sign`.
    """
    text = statement_to_sign(folder, names=_names(names), study=study)
    if out is None:
        if sys.stdout.isatty():
            Console().print(Markdown(text))
            print("To be signed it goes into a file, as Markdown: --out FILE.", file=sys.stderr)
        else:
            print(text, end="")
        return
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise ConfigError(f"--out {out} exists: nothing was written. Give another name.") from error
    except OSError as error:
        raise ConfigError(f"--out {out} cannot be written: {error.strerror}.") from error
    print(f"{out}: to be read and signed. It names the sites: hand it only to those whom they agree to.")


def _names(given: Sequence[str]) -> dict[int, str]:
    found: dict[int, str] = {}
    for one in given:
        silo, _, name = one.partition("=")
        if not silo.isdecimal() or not name:
            raise ConfigError(f"--name {one!r} must be a silo's number and its name, e.g. --name 0='Mercy Hospital'.")
        if int(silo) in found:
            raise ConfigError(f"--name {one!r}: silo {silo} was named before.")
        found[int(silo)] = name
    return found
