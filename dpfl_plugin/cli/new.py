"""`dpfl new`: a package with an algorithm that installs, passes its tests and runs; a Flower app that runs."""

from __future__ import annotations

import importlib.util
import keyword
import re
import shlex
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from string import Template
from typing import Final

from dpfl_plugin import registry
from dpfl_plugin.errors import ConfigError, nearest


@dataclass(frozen=True, slots=True)
class Kind:
    """What `dpfl new` can write.

    Attributes:
        templates: the folder of its templates. files: template -> file; both may name what is filled in.
        steps: shell commands that come next. then: what to change.
    """

    templates: str
    files: dict[str, str]
    steps: tuple[str, ...]
    then: str


KINDS: Final = {
    "algorithm": Kind(
        templates="algorithm",
        files={
            "algorithm.py.template": "$name.py",
            "test_algorithm.py.template": "tests/test_$name.py",
            "config.yaml.template": "$name.yaml",
            "pyproject.toml.template": "pyproject.toml",
            "README.md.template": "README.md",
            "gitignore.template": ".gitignore",
        },
        steps=('pip install -e ".[test]"', "pytest", "dpfl run $name.yaml"),
        then="Then change local_update in $name.py.",
    ),
    "flower-app": Kind(
        templates="flower_app",
        files={
            "init.py.template": "$name/__init__.py",
            "client_app.py.template": "$name/client_app.py",
            "server_app.py.template": "$name/server_app.py",
            "task.py.template": "$name/task.py",
            "pyproject.toml.template": "pyproject.toml",
            "README.md.template": "README.md",
            "gitignore.template": ".gitignore",
        },
        steps=("flwr run . --federation-config 'num-supernodes=5' --stream",),
        then="It needs an environment with Flower. Then put your model and data into $name/task.py.",
    ),
}


def new_package(kind: str, name: str, out: Path) -> None:
    """Write ``out``/NAME-with-dashes/ and say what to do with it.

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
    folder = out / name.replace("_", "-")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists and is not empty: nothing was written. Use another name, or --out.")
    files = rendered(name, kind)
    for path, text in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    print(f"{folder}:")
    for path in files:
        print(f"  {path}")
    steps = (f"cd {shlex.quote(str(folder))}", *KINDS[kind].steps)
    commands = "".join(f"  {step}\n" for step in steps)
    print(Template(f"\nNext, in the environment of dpfl:\n\n{commands}\n{KINDS[kind].then}").safe_substitute(name=name))


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


def rendered(name: str, kind: str = "algorithm") -> dict[str, str]:
    """The package's files, {path: text}."""
    words = {
        "name": name,
        "project": name.replace("_", "-"),
        "class_name": "".join(part.capitalize() for part in name.split("_")),
    }
    folder = resources.files("dpfl_plugin") / "templates" / KINDS[kind].templates
    return {
        Template(path).substitute(words): Template((folder / template).read_text(encoding="utf-8")).substitute(words)
        for template, path in KINDS[kind].files.items()
    }
