"""Where the files of a run are, by its configuration."""

from __future__ import annotations

from pathlib import Path

from dpfl_plugin.config.load import run_id
from dpfl_plugin.config.schema import Config
from dpfl_plugin.runs import checkpoint as checkpoints
from dpfl_plugin.runs.folder import RunFolder


def folder_of(config: Config) -> RunFolder:
    """`<out>/<name>/<id>`."""
    return RunFolder(Path(config.out) / config.name / run_id(config))


def silo_folder(config: Config) -> Path:
    """Where silo ranks keep what rank 0 must not have of a run."""
    folder, elsewhere = folder_of(config), config.runtime.silo_folder
    return folder.silo_ranks if elsewhere is None else Path(elsewhere) / config.name / folder.path.name


def key_of(config: Config, folder: RunFolder, ledger: Path | None) -> Path:
    """The file of the silos' key: one for all runs of a shared ledger, which have to know records again."""
    if config.runtime.silo_folder is not None:
        return Path(config.runtime.silo_folder) / "key"
    if ledger is not None:
        return shared_key(ledger)
    facts = checkpoints.load_facts(folder.checkpoint)  # a finished run is shown without its ledger, too
    shared = None if facts is None else facts["shared_key"]
    return folder.silo_ranks / "key" if shared is None else Path(shared)


def shared_key(path: Path) -> Path:
    """The key by which the runs of a shared ledger know records again."""
    real = path.resolve()
    return real.with_name(f"{real.name}.key")
