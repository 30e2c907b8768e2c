"""A file's runs in Python: change keys, and run them."""

from __future__ import annotations

import json
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dpfl_plugin import own_folders
from dpfl_plugin.api.comparison import Comparison
from dpfl_plugin.api.objects import plain
from dpfl_plugin.api.runs import Run
from dpfl_plugin.api.training import check_path, of_one_seed, run_here
from dpfl_plugin.config.load import NO_RUN, Plan, Variant, base_of
from dpfl_plugin.config.load import load as load_file
from dpfl_plugin.config.schema import Config
from dpfl_plugin.config.tune import has_tune
from dpfl_plugin.config.yaml_text import dump, flow
from dpfl_plugin.core.text import Printed
from dpfl_plugin.errors import ConfigError, DpflError, require
from dpfl_plugin.runs.folder import RunFolder


@dataclass(frozen=True, slots=True)
class Experiment(Printed):
    """What a configuration file describes: one run, or a run for each of its variants; ``print`` shows its keys.

    Attributes:
        path: the file; relative paths in it start at its folder.
        settings: changes of every run, "key=value" as ``--set`` has them.
        variant: the label of the one variant that is meant; None for all.
        held: objects of a program that the file names, and the file's folder where it is made for them.
    """

    path: Path
    settings: tuple[str, ...] = ()
    variant: str | None = None
    held: object = field(default=None, compare=False, repr=False)

    @property
    def variants(self) -> dict[str, Experiment]:
        """Each variant by itself, by label; of a file without any the run, by its name."""
        runs = self.loaded().variants
        return {one.label or one.config.name: replace(self, variant=one.label) for one in runs}

    @property
    def config(self) -> Config:
        """The checked configuration of one run.

        Raises:
            ConfigError: there are several.
        """
        runs = self.loaded().variants
        if len(runs) > 1:
            labels = ", ".join(str(one.label) for one in runs)
            raise ConfigError(f"{self.path} has several variants: choose one, variants[...]: {labels}.")
        found: Config = runs[0].config
        return found

    @property
    def untuned(self) -> Experiment:
        """Without `tune`: the run that the file's own values are."""
        return replace(self, settings=(*self.settings, "tune=null")) if has_tune(self.path, self.settings) else self

    def with_(self, **keys: Any) -> Experiment:
        """With keys changed as by ``--set``: mappings key by key; a block that names another plugin takes the place.

        Raises:
            ConfigError: a key or a value is wrong.
        """
        settings = tuple(f"{key}={json.dumps(plain(value))}" for key, value in keys.items())
        found = replace(self, settings=(*self.settings, *settings))
        found.loaded()  # what is wrong is told here
        return found

    def run(
        self,
        *,
        out: str | Path | None = None,
        resume: bool = False,
        ledger: str | Path | None = None,
        callbacks: Sequence[Any] = (),
        progress: bool | None = None,
        profile: bool = False,
    ) -> Run | Any:  # a Comparison of several variants
        """Run it, or show what is finished; one after another where there are several variants.

        Arguments and errors are those of `dpfl.train`; ``out`` is by default the file's key.
        """
        check_path("out", out)
        settings = self.settings if out is None else (*self.settings, f"out={json.dumps(str(out))}")
        plan = of_one_seed(replace(self, settings=settings).loaded())
        runs = run_here(
            plan,
            self.base,
            resume=resume,
            ledger=ledger,
            callbacks=callbacks,
            progress=progress,
            profile=profile,
            held=self.held,
            source=self.path,
        )
        return Comparison(runs, pairs=plan.compare) if len(plan.variants) > 1 else next(iter(runs.values()))

    def __str__(self) -> str:
        given, told = self.held.held if isinstance(self.held, _Kept) else None, []
        if given is None:
            told.append(f"file: {self.path}")
        told += [f"changed: {', '.join(self.settings)}"] if self.settings else []
        federation = given[0] if isinstance(given, tuple) else None
        try:
            return "\n".join([*told, _keys_text(self.loaded().variants, federation)])
        except (DpflError, OSError) as error:  # it is not read before it is used
            return "\n".join([*told, str(error)])

    __repr__ = __str__

    @property
    def base(self) -> Path:
        """Where relative paths in the file start."""
        return base_of(self.path)

    def loaded(self) -> Plan:
        """The checked runs, and which pairs of them are to be compared.

        Raises:
            ConfigError: anything in the file is wrong; the message names file, key and value.
        """
        own_folders.look_in(self.base)
        return load_file(self.path, self.settings, variant=self.variant)


def load(path: str | Path, *, variant: str | None = None) -> Experiment:
    """The experiment of a configuration file, checked.

    Raises:
        ConfigError: anything in it is wrong; the message names file, key and value.
    """
    found = replace(experiment_of(path), settings=(), variant=variant)
    found.loaded()
    return found


class _Kept:
    """Objects of a program, and a temporary folder that is there for as long as this is."""

    def __init__(self, held: object) -> None:
        self.held, self.folder = held, Path(tempfile.mkdtemp(prefix="dpfl-"))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)


def given_experiment(values: Mapping[str, Any], held: object) -> Experiment:
    """The experiment of a file with these keys, which is written to a temporary folder; no record is in it.

    Args:
        held: objects that the keys name.

    Raises:
        ConfigError: a key or a value is wrong.
    """
    kept = _Kept(held)
    files = RunFolder(kept.folder)
    files.config.write_text(dump(dict(values)), encoding="utf-8")
    files.environment.write_text(json.dumps({"base": str(Path.cwd()), NO_RUN: True}), encoding="utf-8")
    found = Experiment(files.config, held=kept)
    found.loaded()
    return found


def experiment_of(what: Experiment | Run | str | Path) -> Experiment:
    """An experiment, given as it is, by its file, or by a run of it or that run's folder.

    Raises:
        ConfigError: it is none of these.
    """
    if isinstance(what, Experiment):
        return what
    path = what.folder if isinstance(what, Run) else what
    require(
        isinstance(path, str | Path),
        "experiment",
        what,
        "be the path of a configuration, a run, dpfl.load(path), or federation.experiment(algorithm=..., privacy=...)",
    )
    files = RunFolder(Path(path))
    return Experiment(files.config if files.config.is_file() else Path(path))


def _keys_text(variants: Sequence[Variant], records: object | None) -> str:
    """A line for each key; of several variants those that all have alike, then a line for each variant.

    Args:
        records: what is shown in place of `data`, where a program gave them; None: the keys.
    """
    found = {one.label or one.config.name: _keys(one) for one in variants}
    if records is not None:
        found = {label: {**keys, "data": records} for label, keys in found.items()}
    first = next(iter(found.values()))
    alike = {key: value for key, value in first.items() if all(keys.get(key) == value for keys in found.values())}
    lines = _lines(alike)
    for label, keys in found.items() if len(found) > 1 else ():
        lines.append(f"variant {label}: {', '.join(_lines({k: v for k, v in keys.items() if k not in alike}))}")
    return "\n".join(lines)


def _keys(one: Variant) -> dict[str, Any]:
    changed = one.config.model_dump(mode="json", exclude_defaults=True)
    whole = one.config.model_dump(mode="json", exclude_none=True)
    data = {"dataset": whole["data"]["dataset"], **changed.pop("data", {})}
    changed.pop("description", None)
    return {"name": whole["name"], "data": data, "model": whole["model"], **changed}


def _lines(keys: dict[str, Any]) -> list[str]:
    return [f"{key}: {_said(value)}" for key, value in keys.items()]


def _said(value: Any) -> str:
    if isinstance(value, dict) and set(value) == {"name"}:
        return str(value["name"])
    return flow(value) if isinstance(value, dict | list | str | int | float) else str(value)
