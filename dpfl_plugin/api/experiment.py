"""A file's runs in Python: change keys, run, audit."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpfl_plugin import own_folders
from dpfl_plugin.api.objects import plain
from dpfl_plugin.api.runs import Comparison, Run
from dpfl_plugin.api.training import run_config
from dpfl_plugin.config.load import Variant, base_of
from dpfl_plugin.config.load import load as load_file
from dpfl_plugin.config.schema import Config
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.runtimes.in_process import InProcess
from dpfl_plugin.training.audit import Options
from dpfl_plugin.training.audit import audit as audit_config
from dpfl_plugin.training.audit_report import Report
from dpfl_plugin.training.host import SiloHost
from dpfl_plugin.training.runtime import ChargeSink, Observer, Runtime


@dataclass(frozen=True, slots=True)
class Experiment:
    """What a configuration file describes: one run, or a run for each of its variants.

    Attributes:
        path: the file; relative paths in it start at its folder.
        settings: changes of every run, "key=value" as ``--set`` has them.
        variant: the label of the one variant that is meant; None for all.
    """

    path: Path
    settings: tuple[str, ...] = ()
    variant: str | None = None

    @property
    def variants(self) -> dict[str, Experiment]:
        """Each variant by itself, by label; of a file without any the run, by its name."""
        runs = self._variants()
        return {one.label or one.config.name: Experiment(self.path, self.settings, one.label) for one in runs}

    @property
    def config(self) -> Config:
        """The checked configuration of one run.

        Raises:
            ConfigError: there are several.
        """
        runs = self._variants()
        if len(runs) > 1:
            labels = ", ".join(str(one.label) for one in runs)
            raise ConfigError(f"{self.path} has several variants: take one, variants[...]: {labels}.")
        found: Config = runs[0].config
        return found

    def with_(self, **keys: Any) -> Experiment:
        """With keys changed as by ``--set``: mappings key by key; a block that names another plugin takes the place.

        Raises:
            ConfigError: a key or a value is wrong.
        """
        settings = tuple(f"{key}={json.dumps(plain(value))}" for key, value in keys.items())
        found = Experiment(self.path, (*self.settings, *settings), self.variant)
        found._variants()  # what is wrong is told here
        return found

    def run(
        self,
        *,
        resume: bool = False,
        ledger: str | Path | None = None,
        callbacks: Sequence[Any] = (),
        progress: bool | None = None,
    ) -> Run | Comparison:
        """Run it, or show what is finished; one after another where there are several variants.

        Arguments and errors are those of `dpfl.train`; the folder is the file's key ``out``.
        """
        done = {
            one.label or one.config.name: run_config(
                one.config,
                base_of(self.path),
                resume=resume,
                ledger=ledger,
                callbacks=callbacks,
                progress=progress,
                label=one.label,
            )
            for one in self._variants()
        }
        return Comparison(done) if len(done) > 1 else next(iter(done.values()))

    def _variants(self) -> tuple[Variant, ...]:
        own_folders.look_in(base_of(self.path))
        return load_file(self.path, self.settings, variant=self.variant).variants


def load(path: str | Path, *, variant: str | None = None) -> Experiment:
    """The experiment of a configuration file, checked.

    Raises:
        ConfigError: anything in it is wrong; the message names file, key and value.
    """
    found = Experiment(Path(path), variant=variant)
    found._variants()
    return found


def audit(
    experiment: Experiment | str | Path,
    *,
    canaries: int = 1000,
    silos: int | None = None,
    rounds: int | None = None,
    seed: int = 0,
) -> Report | Mapping[str, Report]:
    """Check by experiment what a configuration claims: canaries in silos, seen by the server; as `dpfl audit`.

    Args:
        canaries: in all silos together. silos: that have canaries; None: up to 10.
        rounds: None: all that the configuration would run.

    Returns:
        what was found (``consistent``, ``epsilon_bound``, ``violations``, ...); by label where there are several
        variants, of which those without noise are left out.

    Raises:
        ConfigError, DataError: the configuration or its records are wrong; UnsupportedError: it cannot be audited.
    """
    found = experiment if isinstance(experiment, Experiment) else load(experiment)
    options = Options(canaries=canaries, silos=silos, rounds=rounds, seed=seed)
    runs, base = found._variants(), base_of(found.path)
    reports = {
        one.label or one.config.name: audit_config(one.config, base, options, _in_process)
        for one in runs
        if len(runs) == 1 or one.config.privacy.noise_multiplier != 0
    }
    return reports if len(runs) > 1 else next(iter(reports.values()))


def _in_process(host: SiloHost, stack: int, charges: ChargeSink, observer: Observer) -> Runtime:
    return InProcess(host, charges, stack_size=stack, observers=[observer])
