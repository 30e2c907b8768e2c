"""MLflow: a run of an experiment, in a database on this machine or on a server."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from dpfl_plugin.callbacks.base import RoundInfo, RunInfo
from dpfl_plugin.callbacks.tracker import Remembered, Tracker, finals, flat, needed, scalars, statement_files
from dpfl_plugin.errors import ConfigError

DATABASE: Final = "mlflow.db"
ARTIFACTS: Final = "mlflow-artifacts"
MOST_AT_ONCE: Final = 100  # parameters of one call
LONGEST: Final = 6000  # characters of a parameter
ENDED: Final = {"done": "FINISHED", "budget_exhausted": "FINISHED", "interrupted": "KILLED"}
FAILED: Final = "FAILED"
# Its own would have a run wait for many minutes, and silo ranks give up the server meanwhile.
PATIENCE: Final = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2"}


class MLflow(Tracker):
    """A run of MLflow for each run.

    Args:
        uri: of the tracking server or database; None for ``$MLFLOW_TRACKING_URI``, and without that for the database
            ``mlflow.db`` in the folder of run folders.
        experiment: its name; None for that of the run.

    Raises:
        ConfigError: the package is missing, or ``uri`` holds a password.
    """

    name = "mlflow"

    def __init__(self, uri: str | None = None, *, experiment: str | None = None) -> None:
        if uri is not None and urlsplit(uri).password:
            raise ConfigError(
                f"uri={_without_password(uri)!r} must hold no password: a run's folder keeps its configuration. Set "
                "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD in the environment."
            )
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # it would tell its makers of each call
        for name, value in PATIENCE.items():
            os.environ.setdefault(name, value)
        self._mlflow = needed("mlflow", "mlflow")
        self._given, self._experiment = uri or os.environ.get("MLFLOW_TRACKING_URI"), experiment
        self._id: str | None = None

    def _uri(self, run: RunInfo) -> str:
        if self._given:
            return self._given
        if run.out is None:
            raise ConfigError("MLflow: uri is missing: the run has no folder in which a database could be.")
        return f"sqlite:///{run.out.resolve() / DATABASE}"

    def goes_to(self, run: RunInfo) -> str:
        uri = self._uri(run)
        if _is_local(uri):
            return f"{_without_password(uri)}; nothing leaves this machine"
        return (
            f"SENT over the network to {_without_password(uri)}: losses, accuracies, epsilon, the configuration, the "
            "result and the privacy statement"
        )

    def on_begin(self, run: RunInfo) -> None:
        uri = self._uri(run)
        self._run, self._kept, self._ended = run, Remembered(run, self.name), FAILED
        self._client = self._mlflow.MlflowClient(tracking_uri=uri)
        if self._kept.facts.get("uri") == uri and run.done:
            self._id = str(self._kept.facts["run"])
            self._client.update_run(self._id, status="RUNNING")
        else:
            tags = {"dpfl.id": run.id, "dpfl.name": run.name, "dpfl.epsilon_of": run.epsilon_of}
            made = self._client.create_run(
                self._in_experiment(uri), run_name=run.label or run.id or run.name, tags=tags
            )
            self._id = made.info.run_id
            self._kept.facts.clear()
            self._kept.keep(uri=uri, run=self._id)
        known = self._client.get_run(self._id).data.params  # which cannot be changed
        Param = self._mlflow.entities.Param
        new = [Param(key, str(value)[:LONGEST]) for key, value in flat(run.config).items() if key not in known]
        for first in range(0, len(new), MOST_AT_ONCE):
            self._client.log_batch(self._id, params=new[first : first + MOST_AT_ONCE])

    def _in_experiment(self, uri: str) -> str:
        name = self._experiment or self._run.name
        found = self._client.get_experiment_by_name(name)
        if found is None:
            place = None if self._given or self._run.out is None else self._run.out.resolve() / ARTIFACTS
            with contextlib.suppress(self._mlflow.exceptions.MlflowException):  # another run of a sweep was faster
                return str(self._client.create_experiment(name, None if place is None else place.as_uri()))
            found = self._client.get_experiment_by_name(name)
        return str(found.experiment_id)

    def on_round(self, round: RoundInfo) -> None:
        found = scalars(round)
        if found and self._kept.is_new(round.number):
            for name, value in found.items():
                self._client.log_metric(self._id, name, value, step=round.number)

    def on_end(self, result: Mapping[str, Any]) -> None:
        for name, value in finals(result).items():
            said = f"{value}" if name.startswith("epsilon/") else f"{value:.6g}"  # a bound is not rounded down
            self._client.set_tag(self._id, f"dpfl.final.{name}", said)
        self._client.log_dict(self._id, dict(result), "result.json")
        for path in statement_files(self._run.folder):
            self._client.log_artifact(self._id, str(path))
        self._ended = ENDED.get(str(result.get("status")), FAILED)

    def close(self) -> None:
        if self._id is not None:
            self._client.set_terminated(self._id, self._ended)
            self._id = None


def _is_local(uri: str) -> bool:
    return urlsplit(uri).scheme in ("", "file", "sqlite")


def _without_password(uri: str) -> str:
    found = urlsplit(uri)
    host = found.netloc.rpartition("@")[2]
    return found._replace(netloc=host).geturl() if found.netloc != host else uri


def mlflow(base: Path, *, uri: str | None = None, experiment: str | None = None) -> MLflow:
    """A run of MLflow, in `mlflow.db` in the folder of runs, at `$MLFLOW_TRACKING_URI` or at `uri`."""
    return MLflow(uri, experiment=experiment)
