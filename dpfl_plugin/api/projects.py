"""A project from nothing, or around tables that are there."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from string import Template
from typing import Final

from dpfl_plugin.api.project_data import DataBlock, OwnData, drafted, found, made_up
from dpfl_plugin.core.text import Printed
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.runs.folder import try_folder

CONFIG: Final = "run.yaml"
NOTEBOOK: Final = "notebook.ipynb"
GITIGNORE: Final = ".gitignore"
KEPT: Final = "{path} existed and was not changed. To keep records and runs out of git, add these lines:"
RECORDS: Final = 250  # of a made-up silo: enough for a guarantee and a model, quick to train on
SILOS: Final = {"north": -0.4, "south": -0.1, "east": 0.2, "west": 0.4}  # by how much their patients differ


@dataclass(frozen=True, slots=True, repr=False)
class Project(Printed):
    """A project that was written.

    Attributes:
        files: paths in ``folder``. told: what is to be known of its data, also for the command.
        unignored: lines that a .gitignore which was there, and was left as it is, should have.
    """

    folder: Path
    files: tuple[str, ...]
    told: tuple[str, ...]
    unignored: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be known of its data."""
        return self.told

    def __str__(self) -> str:
        lines = [f"{self.folder}:", *(f"  {path}" for path in self.files), *self.notes]
        if self.unignored:
            lines.append(KEPT.format(path=self.folder / GITIGNORE))
            lines += [f"  {line}" for line in self.unignored]
        return "\n".join([*lines, f"Next: dpfl.load({str(self.folder / CONFIG)!r}).run()"])

    __repr__ = __str__


def init_project(
    folder: str | Path,
    *,
    data: str | Path | None = None,
    label: str | None = None,
    guess_label: bool = False,
    silo: str | None = None,
    person: str | None = None,
    time: str | None = None,
    event: str | None = None,
    schema: bool = False,
    encoding: str | None = None,
    sheet: str | None = None,
) -> Project:
    """Write a project to ``folder``: a configuration that runs, data (made up, or yours), a notebook, a .gitignore.

    Args:
        data: a table, or a folder with one for each silo, or a pattern; None for made-up records.
        label, silo, person: columns of it: what to predict, whose silo and whose record it is.
        time, event: of survival, instead of a label: a time, and whether the event was then.
        guess_label: choose the label by its name, or take the last column.
        schema: draft one by looking at the values, which is not private; else the tables are CSV files of numbers.
        encoding, sheet: with a schema, of text that is not UTF-8; of workbooks, where it is not the first.

    Raises:
        ConfigError: a file is there already, the folder cannot be written, or no column has such a name; nothing is
            written.
        DataError: the data are missing, or no such tables; nothing is written.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"folder={str(folder)!r} is a file: nothing was written. Use another name.")
    try:
        try_folder(folder)
    except OSError as error:
        raise ConfigError(f"folder={str(folder)!r} cannot be written: {error.strerror}. Use another.") from error
    roles = {"label": label, "silo": silo, "person": person, "time": time, "event": event}
    block = _block(folder, data, roles, {"encoding": encoding, "sheet": sheet}, guess_label=guess_label, schema=schema)
    files = rendered(_name(folder), block, with_records=data is None)
    kept = (folder / GITIGNORE).exists()
    ignore = files.pop(GITIGNORE) if kept else ""
    _check_free(folder, files, with_records=data is None)
    for path, text in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("x", encoding="utf-8") as file:  # x: nor is a file that came meanwhile overwritten
            file.write(text)
    lines = tuple(line for line in ignore.splitlines() if line and not line.startswith("#"))
    return Project(folder, tuple(files), tuple(block.told), lines)


def _block(
    folder: Path,
    data: str | Path | None,
    roles: Mapping[str, str | None],
    form: Mapping[str, str | None],
    *,
    guess_label: bool,
    schema: bool,
) -> DataBlock:
    """What the configuration says of the data."""
    given = {**roles, **form, "guess_label": guess_label or None}
    if data is None:
        for name, value in given.items():
            if value is not None:
                raise ConfigError(f"{name} has no meaning without data: made-up data come with their own columns.")
        return made_up()
    if schema and guess_label:
        raise ConfigError("guess_label is for CSV files of numbers; with a schema, label says which column it is.")
    for name in ("person", "time", "event", *form):
        if given[name] is not None and not schema:
            raise ConfigError(f"{name} has no meaning without a schema, which says what it holds.")
    own = OwnData(Path(data), guess_label=guess_label, **roles, **form)
    return drafted(own, folder) if schema else found(own, folder)


def rendered(name: str, block: DataBlock | None = None, *, with_records: bool = True) -> dict[str, str]:
    """The project's files, {path: text}."""
    block = block or made_up()
    words = {
        "name": name,
        "data": "\n".join(f"  {line}" for line in block.lines),
        "preprocess": "\n".join(f"  {line}" for line in block.preprocess),
        "records": str(RECORDS),
        "local_lr": str(block.local_lr),
        "compare": block.compare,
        "sampler": "".join(f"  {line}\n" for line in block.sampler),
    }
    files = {
        CONFIG: _fill("run.yaml", words),
        NOTEBOOK: _fill("notebook.ipynb", words),
        GITIGNORE: _fill("gitignore", words),
    }
    if with_records:
        files["data/README.md"] = _fill("data.md", words)
        files |= {f"data/{silo}.csv": text for silo, text in made_up_silos().items()}
    return files


def _fill(template: str, words: Mapping[str, str]) -> str:
    path = resources.files("dpfl_plugin") / "templates" / "project" / f"{template}.template"
    return Template(path.read_text(encoding="utf-8")).substitute(words)


def _check_free(folder: Path, files: Mapping[str, str], *, with_records: bool) -> None:
    there = [path for path in files if (folder / path).exists()]
    if there:
        raise ConfigError(
            f"{folder} has {', '.join(there)} already: nothing was written. Move {'it' if len(there) == 1 else 'them'} "
            "away, or use another folder."
        )
    data = folder / "data"
    if with_records and data.exists() and (not data.is_dir() or any(data.iterdir())):
        raise ConfigError(
            f"{data} is not empty: made-up records are not put next to what it holds, so nothing was written. "
            f"For a project on records of your own give data {str(data)!r} and label. Else use another "
            "folder."
        )


def _name(folder: Path) -> str:
    """A run's name from the folder's."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", folder.resolve().name).lstrip("._-") or "run"


def made_up_silos() -> dict[str, str]:
    """CSV text by silo; the same each time."""
    rng, texts, number = random.Random(0), {}, 1000
    for silo, shift in SILOS.items():
        lines = ["patient_id,age,pressure,glucose,diagnosis"]
        for _ in range(RECORDS):
            age, pressure, glucose = (max(-1.0, min(1.0, rng.gauss(shift * part, 0.4))) for part in (1, 0.5, -0.5))
            ill = age + 1.5 * pressure + glucose + rng.gauss(0, 0.3) > 0
            lines.append(f"{number},{age:.3f},{pressure:.3f},{glucose:.3f},{'ill' if ill else 'healthy'}")
            number += 1
        texts[silo] = "\n".join(lines) + "\n"
    return texts
