"""`dpfl init`: a project from nothing, or around CSV files that are there."""

from __future__ import annotations

import csv
import glob
import gzip
import json
import os
import random
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any, Final

import numpy as np

from dpfl_plugin.data import files as data_files
from dpfl_plugin.data.base import Features
from dpfl_plugin.data.fetch import DataSource
from dpfl_plugin.data.flaws import check_kind, not_utf8
from dpfl_plugin.data.table import identifier_columns, is_number
from dpfl_plugin.errors import ConfigError, DataError
from dpfl_plugin.registry import nearest

CONFIG: Final = "run.yaml"
NOTEBOOK: Final = "notebook.ipynb"
GITIGNORE: Final = ".gitignore"
LABELS: Final = ("label", "target", "class", "outcome", "diagnosis", "y")
DELIMITERS: Final = ",;\t|"
SUFFIXES: Final = (".csv", ".csv.gz")
FAR_APART: Final = 10.0  # scales of columns
DEALT: Final = 5  # silos that the records of one file are dealt to
RECORDS: Final = 250  # of a made-up silo: enough for a guarantee and a model, quick to train on
SILOS: Final = {"north": -0.4, "south": -0.1, "east": 0.2, "west": 0.4}  # by how much their patients differ


@dataclass(frozen=True, slots=True)
class OwnData:
    """CSV files that are there: a file, or a folder with one for each silo; and which columns are what."""

    path: Path
    label: str | None = None
    guess_label: bool = False
    silo: str | None = None


@dataclass(frozen=True, slots=True)
class _Block:
    """What the configuration says of the data, and what the user is told of it.

    Attributes:
        lines: of YAML under ``data:``, without their indentation.
    """

    lines: tuple[str, ...]
    told: tuple[str, ...] = ()


def init_project(folder: Path, own: OwnData | None = None) -> None:
    """Write a project to ``folder`` and say what to do with it.

    Raises:
        ConfigError: a file is there already, or ``own`` names no column; nothing is written.
        DataError: the data are missing, or no such tables; nothing is written.
    """
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"FOLDER={str(folder)!r} is a file: nothing was written. Use another name.")
    block = _made_up() if own is None else _found(own, folder)
    files = rendered(_name(folder), block, made_up=own is None)
    kept = (folder / GITIGNORE).exists()
    ignore = files.pop(GITIGNORE) if kept else ""
    _check_free(folder, files, made_up=own is None)
    for path, text in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("x", encoding="utf-8") as file:  # x: nor is a file that came meanwhile overwritten
            file.write(text)
    print(f"{folder}:")
    for path in files:
        print(f"  {path}")
    for line in block.told:
        print(line)
    if kept:
        lines = [line for line in ignore.splitlines() if line and not line.startswith("#")]
        print(
            f"{folder / GITIGNORE} existed and was not changed. To keep records and runs out of git, add these lines:"
        )
        print("".join(f"  {line}\n" for line in lines), end="")
    inside = "" if folder.resolve() == Path.cwd() else f"  cd {shlex.quote(str(folder))}\n"
    print(f"\nNext:\n\n{inside}  dpfl account {CONFIG}     # epsilon, before anything is trained\n  dpfl run {CONFIG}")


def rendered(name: str, block: _Block | None = None, *, made_up: bool = True) -> dict[str, str]:
    """The project's files, {path: text}."""
    block = block or _made_up()
    words = {
        "name": name,
        "data": "\n".join(f"  {line}" for line in block.lines),
        "records": str(RECORDS),
    }
    files = {
        CONFIG: _fill("run.yaml", words),
        NOTEBOOK: _fill("notebook.ipynb", words),
        GITIGNORE: _fill("gitignore", words),
    }
    if made_up:
        files["data/README.md"] = _fill("data.md", words)
        files |= {f"data/{silo}.csv": text for silo, text in made_up_silos().items()}
    return files


def _fill(template: str, words: Mapping[str, str]) -> str:
    path = resources.files("dpfl_plugin.cli") / "templates" / "project" / f"{template}.template"
    return Template(path.read_text(encoding="utf-8")).substitute(words)


def _check_free(folder: Path, files: Mapping[str, str], *, made_up: bool) -> None:
    there = [path for path in files if (folder / path).exists()]
    if there:
        raise ConfigError(
            f"{folder} has {', '.join(there)} already: nothing was written. Move {'it' if len(there) == 1 else 'them'} "
            "away, or use another FOLDER."
        )
    data = folder / "data"
    if made_up and data.exists() and (not data.is_dir() or any(data.iterdir())):
        raise ConfigError(
            f"{data} is there and not empty: made-up records do not go beside what it holds, and nothing was written. "
            f"For a project on records of your own: dpfl init {shlex.quote(str(folder))} --data "
            f"{shlex.quote(str(data))} --label COLUMN. Else use another FOLDER."
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


def _made_up() -> _Block:
    return _Block(
        (
            "dataset:",
            "  name: csv",
            '  files: "data/*.csv"               # a file is a silo; these are made up: see data/README.md',
            "  label_column: diagnosis",
            "  ignore_columns: [patient_id]      # every other column is a feature, and has to be numeric",
            "  classes: [healthy, ill]           # named here, not read from the records, which would leak them",
            "partition: natural                  # the silos that the data have",
        ),
        ("The records are made up: data/README.md says how, and how to use your own.",),
    )


def _found(own: OwnData, folder: Path) -> _Block:
    """What the user's files hold.

    Raises:
        ConfigError: it was not said which column is the label, or a column is not there.
        DataError: as `data_files.csv`; or no column is left to learn from.
    """
    paths, patterns = _paths(own.path, folder)
    delimiter, header = _header(paths[0])
    label, guessed = _label(own, paths[0], header)
    if own.silo is not None and own.silo not in header:
        raise _no_column("--silo", own.silo, paths[0], header)
    words = _words(paths[0], delimiter, header, {label, own.silo})
    options: dict[str, Any] = {"label_column": label, "silo_column": own.silo, "delimiter": delimiter}
    listed = [glob.escape(str(path)) for path in paths]
    read = data_files.csv(DataSource(base=Path()), files=listed, ignore_columns=words, **options)
    numbers = identifier_columns(read.columns, [read.features])
    if len(numbers) == len(read.columns):
        raise DataError(
            f"{paths[0]}: no column is left to learn from: {', '.join(words + numbers)} hold words, or numbers that "
            "name the record. Encode words as numbers."
        )
    features = [column for column in read.columns if column not in numbers]
    lines = ["dataset:", "  name: csv", f"  files: {_yaml(patterns[0] if len(patterns) == 1 else patterns)}"]
    lines.append(f"  label_column: {_yaml(label)}")
    if own.silo is not None:
        lines.append(f"  silo_column: {_yaml(own.silo)}")
    if delimiter != ",":
        lines.append(f"  delimiter: {_yaml(delimiter)}")
    if words or numbers:
        lines.append(f"  ignore_columns: {_yaml([*words, *numbers])}")
    classes = _yaml(list(read.class_names))
    lines += ["  # Labels that are read from the records are not covered by epsilon. If these are public, name them:"]
    lines += [f"  # classes: {classes}" if len(classes) < 200 else "  # classes: [..., ...]"]
    dealt = []
    if own.silo is None and len(paths) == 1:
        lines += [f"partition: iid          # one file: its records are dealt to {DEALT} silos at random, to simulate"]
        lines += [f"num_silos: {DEALT}"]
        dealt = [f"One file and no --silo COLUMN: its records are dealt to {DEALT} silos at random, as a simulation."]
    else:
        lines.append("partition: natural      # the silos that the data have")
    told = [f"label: {label}{' (guessed: check it)' if guessed else ''}; {len(read.class_names)} classes."]
    told.append(f"features: {', '.join(features)}.")
    if words:
        told.append(f"not used, as they hold words: {', '.join(words)}. Encode them as numbers to use them.")
    told += _scales(features, read.features[:, [read.columns.index(name) for name in features]])
    if numbers:
        told.append(f"not used, as their numbers differ in every record, as identifiers do: {', '.join(numbers)}.")
    return _Block(tuple(lines), (*told, *dealt))


def _scales(names: Sequence[str], x: Features) -> list[str]:
    """What to say of columns whose scales differ so much that `unit_norm` leaves little of some of them."""
    sizes = np.sqrt(np.mean(np.square(x, dtype=np.float64), axis=0))
    large, small = int(sizes.argmax()), int(sizes.argmin())
    if sizes[large] <= FAR_APART * sizes[small]:
        return []
    return [
        f"The columns differ in scale: {names[large]} is about {sizes[large]:.3g}, {names[small]} {sizes[small]:.3g}. "
        "unit_norm, which run.yaml has, would leave next to nothing of the small ones: bring columns to one scale in "
        "the files, by ranges that are public."
    ]


def _yaml(value: Any) -> str:
    """One line of JSON, which is YAML."""
    return json.dumps(value, ensure_ascii=False)


def _inside(path: Path, folder: Path) -> Path | None:
    """``path`` from the project's folder, if it lies in it."""
    real, root = path.resolve(), folder.resolve()
    return real.relative_to(root) if real.is_relative_to(root) else None


def _paths(path: Path, folder: Path) -> tuple[list[Path], list[str]]:
    """The files, and how the configuration names them."""
    if not path.exists():
        raise DataError(f"--data {str(path)!r}: there is no such file or folder; looked for {path.absolute()}.")
    inside = _inside(path, folder)
    named = path.resolve() if inside is None else inside
    if path.is_file():
        return [path], [glob.escape(str(named))]
    paths, patterns = [], []
    for suffix in SUFFIXES:
        found = sorted(one for one in path.iterdir() if one.is_file() and one.name.endswith(suffix))
        if found:
            paths += found
            patterns.append(os.path.join(glob.escape(str(named)), f"*{suffix}"))
    if not paths:
        raise DataError(f"--data {str(path)!r}: the folder holds no file named *.csv or *.csv.gz.")
    return paths, patterns


def _header(path: Path) -> tuple[str, list[str]]:
    """The delimiter and the names of the columns."""
    check_kind(path)
    try:
        with _open(path) as text:
            line = text.readline()
            delimiter = next((mark for mark in DELIMITERS if mark in line), ",")
            text.seek(0)
            return delimiter, [name.strip() for name in next(csv.reader(text, delimiter=delimiter), [])]
    except UnicodeDecodeError as error:
        raise DataError(not_utf8(path, error)) from error
    except (csv.Error, EOFError, OSError) as error:
        raise DataError(f"{path} is not a CSV file in UTF-8: {error}.") from error


def _open(path: Path) -> Any:
    opened = gzip.open if path.suffix == ".gz" else open
    return opened(path, "rt", encoding="utf-8-sig", newline="")


def _label(own: OwnData, path: Path, header: list[str]) -> tuple[str, bool]:
    if own.label is not None:
        if own.label not in header:
            raise _no_column("--label", own.label, path, header)
        return own.label, False
    if not own.guess_label:
        raise ConfigError(
            f"--label is missing: which column of {path} is to be predicted? Columns: {', '.join(header[:30])}. "
            "--guess-label chooses one by its name, or takes the last."
        )
    known = {name.lower(): name for name in reversed(header)}
    return next((known[name] for name in LABELS if name in known), header[-1] if header else ""), True


def _no_column(option: str, name: str, path: Path, header: Sequence[str]) -> ConfigError:
    return ConfigError(
        f"{option}={name!r}{nearest(name, header)}: {path} has no such column. Columns: {', '.join(header[:30])}."
    )


def _words(path: Path, delimiter: str, header: list[str], special: set[str | None]) -> list[str]:
    """Columns most of whose cells are no numbers; a few that are not are flaws, which reading tells."""
    places = [place for place, name in enumerate(header) if name not in special]
    filled, numeric = dict.fromkeys(places, 0), dict.fromkeys(places, 0)
    try:
        with _open(path) as text:
            for number, row in enumerate(csv.reader(text, delimiter=delimiter)):
                for place in places:
                    cell = row[place].strip() if number and place < len(row) else ""
                    filled[place] += bool(cell)
                    numeric[place] += bool(cell) and is_number(cell)
    except (UnicodeDecodeError, csv.Error, EOFError, OSError):  # which reading tells, too
        return []
    return [header[place] for place in places if 2 * numeric[place] < filled[place]]
