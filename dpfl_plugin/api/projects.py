"""`init` and `new`: a project around tables, or from nothing; a package with an algorithm or a Flower app."""

from __future__ import annotations

import importlib.util
import json
import keyword
import random
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from dpfl_plugin import registry
from dpfl_plugin.api.project_data import EPSILON, UNIT_NORM, DataBlock, OwnData, csv_block, schema_block, training_of
from dpfl_plugin.config import yaml_text
from dpfl_plugin.core.text import Printed, render
from dpfl_plugin.errors import ConfigError, nearest
from dpfl_plugin.runs.folder import try_folder

CONFIG: Final = "run.yaml"
GITIGNORE: Final = ".gitignore"
RECORDS: Final = 250  # of a made-up silo: enough for a guarantee and a model, quick to train on
MADE_UP: Final = "The records are made up: data/README.md says how, and how to use your own."
SILOS: Final = {"north": -0.4, "south": -0.1, "east": 0.2, "west": 0.4}  # by how much their patients differ


@dataclass(frozen=True, slots=True, repr=False)
class Project(Printed):
    """A project that was written.

    Attributes:
        files: paths in ``folder``. told: what is to be known of its data.
        unignored: lines that a .gitignore which was there, and was left as it is, should have.
        schema: whether one was drafted.
    """

    folder: Path
    files: tuple[str, ...]
    told: tuple[str, ...]
    unignored: tuple[str, ...] = ()
    schema: bool = False

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be known of its data."""
        return self.told

    def __str__(self) -> str:
        return self._text(self.notes)

    __repr__ = __str__

    def _text(self, notes: Sequence[str]) -> str:
        here = self.folder.resolve() == Path.cwd()
        cd = "" if here else shlex.quote(str(self.folder))
        values = {"folder": self.folder, "files": self.files, "unignored": self.unignored, "schema": self.schema}
        return render("project/made.txt.jinja", notes=notes, cd=cd, **values).rstrip("\n")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**asdict(self), "folder": str(self.folder), "told": list(self.notes)}


def init(
    folder: str | Path = ".",
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
    """Write a project: a configuration that runs, data (made up, or yours), a notebook, a .gitignore.

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
    files = rendered(_name(folder), block)
    kept = (folder / GITIGNORE).exists()
    ignore = files.pop(GITIGNORE) if kept else ""
    _check_free(folder, files, with_records=block.made_up)
    _write(folder, files)
    lines = tuple(line for line in ignore.splitlines() if line and not line.startswith("#"))
    return Project(folder, tuple(files), tuple(block.told), lines, schema=block.schema is not None)


def _write(folder: Path, files: Mapping[str, str]) -> None:
    for path, text in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("x", encoding="utf-8") as file:  # x: nor is a file that came meanwhile overwritten
            file.write(text)


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
        return DataBlock(told=(MADE_UP,))
    if schema and guess_label:
        raise ConfigError("guess_label is for CSV files of numbers; with a schema, label says which column it is.")
    for name in ("person", "time", "event", *form):
        if given[name] is not None and not schema:
            raise ConfigError(f"{name} has no meaning without a schema, which says what it holds.")
    own = OwnData(Path(data), guess_label=guess_label, **roles, **form)
    return schema_block(own, folder) if schema else csv_block(own, folder)


def rendered(name: str, block: DataBlock | None = None) -> dict[str, str]:
    """A project's files, {path: text}."""
    block = block or DataBlock()
    one_line = partial(json.dumps, ensure_ascii=False)  # JSON is YAML
    training = block.training or training_of("classes", UNIT_NORM, [RECORDS] * len(SILOS), None)
    values = {
        **asdict(block),
        "training": training,
        "epsilon": f"{EPSILON:g}",
        "name": name,
        "made_up": block.made_up,
        "flow": yaml_text.flow,
        "json": one_line,
    }
    files = {
        CONFIG: render("project/run.yaml.jinja", **values),
        "notebook.ipynb": render("project/notebook.ipynb.jinja", name=name),
        GITIGNORE: render("project/gitignore.jinja"),
    }
    if block.made_up:
        files["data/README.md"] = render("project/data.md.jinja", records=RECORDS)
        files |= {f"data/{silo}.csv": text for silo, text in made_up_silos().items()}
    return files


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


@dataclass(frozen=True, slots=True)
class PackageKind:
    """What `new` can write.

    Attributes:
        templates: the folder of its templates. files: template -> file. steps: shell commands that come next. change:
            what to change then.
    """

    templates: str
    files: Mapping[str, str]
    steps: tuple[str, ...]
    change: str


KINDS: Final = {
    "algorithm": PackageKind(
        templates="algorithm",
        files={
            "algorithm.py": "{name}.py",
            "test_algorithm.py": "tests/test_{name}.py",
            "config.yaml": "{name}.yaml",
            "pyproject.toml": "pyproject.toml",
            "README.md": "README.md",
            "gitignore": ".gitignore",
        },
        steps=('pip install -e ".[test]"', "pytest", "dpfl run {name}.yaml"),
        change="Then change local_update in {name}.py.",
    ),
    "flower-app": PackageKind(
        templates="flower_app",
        files={
            "init.py": "{name}/__init__.py",
            "client_app.py": "{name}/client_app.py",
            "server_app.py": "{name}/server_app.py",
            "task.py": "{name}/task.py",
            "pyproject.toml": "pyproject.toml",
            "README.md": "README.md",
            "gitignore": ".gitignore",
        },
        steps=("flwr run . --federation-config 'num-supernodes=5' --stream",),
        change="It needs an environment with Flower. Then put your model and data into {name}/task.py.",
    ),
}


@dataclass(frozen=True, slots=True)
class Package(Printed):
    """A package that was written: its files in ``folder``, and what to do next."""

    folder: Path
    files: tuple[str, ...]
    steps: tuple[str, ...]
    change: str

    def __str__(self) -> str:
        files = "".join(f"  {path}\n" for path in self.files)
        steps = "".join(f"  {step}\n" for step in (f"cd {shlex.quote(str(self.folder))}", *self.steps))
        return f"{self.folder}:\n{files}\nNext, in the environment of dpfl:\n\n{steps}\n{self.change}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**asdict(self), "folder": str(self.folder)}


def new(kind: str, name: str, out: str | Path = ".") -> Package:
    """Write a package to ``out``/NAME-with-dashes/.

    Args:
        kind: algorithm: one with its tests; flower-app: one whose silos train privately. name: of a Python module.

    Raises:
        ConfigError: the kind is unknown, the name cannot be used, or the folder is not empty.
    """
    if kind not in KINDS:
        raise ConfigError(
            f"dpfl new {kind}: no such kind{nearest(kind, KINDS)}. Known: {', '.join(KINDS)}. Other plugins "
            "are functions or classes with an entry point: dpfl list lists them all."
        )
    check_name(name)
    if kind == "algorithm" and name in registry.names("algorithms"):
        raise ConfigError(
            f"NAME={name!r} is taken: {registry.origin('algorithms', name)} registers an algorithm of this name. Use "
            "another one."
        )
    folder = Path(out) / name.replace("_", "-")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists and is not empty: nothing was written. Use another name, or another out.")
    files = rendered_package(name, kind)
    _write(folder, files)
    steps = tuple(step.replace("{name}", name) for step in KINDS[kind].steps)
    return Package(folder, tuple(files), steps, KINDS[kind].change.replace("{name}", name))


def rendered_package(name: str, kind: str = "algorithm") -> dict[str, str]:
    """A package's files, {path: text}."""
    class_name = "".join(part.capitalize() for part in name.split("_"))
    words = {"name": name, "project": name.replace("_", "-"), "class_name": class_name}
    folder, files = KINDS[kind].templates, KINDS[kind].files
    return {path.format(name=name): render(f"{folder}/{file}.jinja", **words) for file, path in files.items()}


def check_name(name: str) -> None:
    """Raise ConfigError unless ``name`` can be a module of its own."""
    simple = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    hint = f", e.g. {simple}" if simple.isidentifier() and simple != name else ""
    if not re.fullmatch(r"[a-z](_?[a-z0-9])*", name) or keyword.iskeyword(name):
        raise ConfigError(
            f"NAME={name!r} must be a Python name of lower-case letters, digits and single underscores, that begins "
            f"with a letter and is not a keyword{hint}."
        )
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.origin is not None:  # None: any folder of that name
        raise ConfigError(
            f"NAME={name!r} is taken: there is a module of this name ({spec.origin}), which would hide yours or be "
            f"hidden by it. Use another one, e.g. dp_{name}."
        )
