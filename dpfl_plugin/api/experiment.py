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
from dpfl_plugin.api import pictures
from dpfl_plugin.api.experiment_text import keys_text
from dpfl_plugin.api.objects import plain
from dpfl_plugin.api.progress import Teller
from dpfl_plugin.api.running import LEDGER_WAIT, Wait, in_file, of_one_seed, register
from dpfl_plugin.api.runs import Comparison, Run
from dpfl_plugin.api.training import check_path, run_config
from dpfl_plugin.config.load import NO_RUN, Plan, base_of
from dpfl_plugin.config.load import load as load_file
from dpfl_plugin.config.schema import Config
from dpfl_plugin.config.tune import has_tune
from dpfl_plugin.config.yaml_text import dump
from dpfl_plugin.core.text import Printed
from dpfl_plugin.errors import ConfigError, DataError, DpflError, require
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
        return replace(self, settings=(*self.settings, "tune=null")) if has_tune(self.path) else self

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
        check_path("ledger", ledger)
        plan, done = of_one_seed((self if out is None else self.with_(out=str(out))).loaded()), {}
        shared = None if ledger is None else Path(ledger)
        register([one.config for one in plan.variants], self.base, shared, Wait(LEDGER_WAIT), Teller(progress).note)
        for one in plan.variants:
            try:
                done[one.label or one.config.name] = run_config(
                    one.config,
                    self.base,
                    resume=resume,
                    ledger=ledger,
                    callbacks=callbacks,
                    progress=progress,
                    profile=profile,
                    label=one.label,
                    held=self.held,
                )
            except (ConfigError, DataError) as error:
                raise in_file(error, self.path, one) from error
        if len(plan.variants) > 1:
            pictures.of_variants(plan.variants[0].config, {label: run.lines for label, run in done.items()})
        return Comparison(done) if len(done) > 1 else next(iter(done.values()))

    def __str__(self) -> str:
        given, told = self.held.held if isinstance(self.held, _Kept) else None, []
        if given is None:
            told.append(f"file: {self.path}")
        told += [f"changed: {', '.join(self.settings)}"] if self.settings else []
        federation = given[0] if isinstance(given, tuple) else None
        try:
            return "\n".join([*told, keys_text(self.loaded().variants, federation)])
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
