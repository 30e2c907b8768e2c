"""Which settings of a Flower project mean what a setting of ours means, and so count without being said twice.

The run's configuration is known at the server and at every node, and so may be read at both ends. `train_config` of
``start`` is known at the server alone, which can only compare it with what was agreed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from flwr.app import Context
from torch import nn

from dpfl_plugin import registry
from dpfl_plugin.adapters.agreement import Agreement, Permit, agreed_here
from dpfl_plugin.adapters.flower_arrays import TABLE
from dpfl_plugin.adapters.platforms import folder_from, nested
from dpfl_plugin.errors import ConfigError

SOURCE: Final = f"[tool.flwr.app.config.{TABLE}]"
SAME: Final[dict[str, tuple[str, ...]]] = {
    "num-server-rounds": ("rounds",),
    "fraction-train": ("silo_rate",),
    "learning-rate": ("algorithm", "local_lr"),
    "lr": ("algorithm", "local_lr"),
    "local-steps": ("algorithm", "local_steps"),
    "batch-size": ("privacy", "batch_size"),
}
"""Key of Flower's templates: the place of ours that means the same. Local epochs are none: steps draw their batches."""
INSTEAD: Final[dict[tuple[str, ...], str]] = {
    ("privacy", "batch_size"): "record_rate",
    ("algorithm", "local_lr"): "eta_0",
}
"""What is given in the place of ours, so that the project's value would be a second one."""


@dataclass(frozen=True, slots=True)
class ProjectSettings:
    """What a run's configuration says of training.

    Attributes:
        values: keys of ours, as `agree` takes them, with what the project says in its own words filled in.
        used: the project's keys that count, and what they count as.
        unread: the project's keys that have no effect on how silos train.
    """

    values: dict[str, Any]
    used: dict[str, str]
    unread: tuple[str, ...]


def settings_of(run_config: Mapping[str, Any], table: str) -> ProjectSettings:
    """What the keys under ``table`` say, and for what they leave open, the project's keys that mean the same."""
    values, used, same = nested(run_config, table), dict[str, str](), set[str]()
    for key, value in run_config.items():
        place = SAME.get(key.replace("_", "-"))
        if place is None or type(value) not in (int, float):
            continue
        block = _block(values, place)
        if block is None or (place in INSTEAD and INSTEAD[place] in block):
            continue
        if place[-1] not in block:
            block[place[-1]] = value
            used[key] = ".".join((table, *place))
        elif block[place[-1]] == value:
            same.add(key)
    unread = sorted(key for key in run_config if key.partition(".")[0] != table and key not in used.keys() | same)
    return ProjectSettings(values, used, tuple(unread))


def agreement_of(context: Context, model: nn.Module, permit: Permit | None = None) -> Agreement:
    """What the run's configuration says; the same at the server and at every node.

    Args:
        permit: see `agree`.

    Raises:
        LimitError: the node's owner allows less.
        ConfigError: a key is missing, unknown or wrong.
    """
    values = settings_of(context.run_config, TABLE).values
    values.pop("folder", None)
    num_silos = values.pop("num_silos", None)
    if type(num_silos) is not int:
        raise ConfigError(f"{SOURCE}: num_silos={num_silos!r} must be the number of silos, M.")
    return agreed_here().agree(values, num_silos=num_silos, model=model, source=SOURCE, permit=permit)


def folder_of(context: Context, name: str) -> Path:
    """The node's own folder if its node-config names one, else a place in that of the run's configuration."""
    own = own_folder(context)
    if own is not None:
        return own
    of_run = folder_from(context.run_config.get(f"{TABLE}.folder"), f"{SOURCE}: folder", "")
    return of_run / name


def own_folder(context: Context) -> Path | None:
    own = context.node_config.get(f"{TABLE}-folder")
    return None if own is None else folder_from(own, f"node-config {TABLE}-folder", "")


def differing(train_config: Mapping[str, Any], agreed: Mapping[str, Any]) -> list[str]:
    """The keys of a ``train_config``, with values, that say something else than ``agreed`` does, or nothing of ours."""
    found = []
    for key, value in train_config.items():
        place = SAME.get(key.replace("_", "-"))
        ours = agreed if place is None else _at(agreed, place[:-1])
        if place is None or ours.get(place[-1]) is None:
            found.append(str(key))
        elif ours[place[-1]] != value:
            found.append(f"{key}={value}, and {'.'.join(place)}={ours[place[-1]]} counts")
    return sorted(found)


def _block(values: dict[str, Any], place: tuple[str, ...]) -> dict[str, Any] | None:
    """The block that a key belongs to; None where there is none, or an algorithm that has no such option."""
    if len(place) == 1:
        return values
    block = values.get(place[0])
    if isinstance(block, str):
        block = values[place[0]] = {"name": block}
    if not isinstance(block, dict):
        return None
    if place[0] == "algorithm":
        name = block.get("name")
        if name not in registry.names("algorithms") or place[-1] not in registry.options(
            registry.load("algorithms", str(name))
        ):
            return None
    return block


def _at(values: Mapping[str, Any], place: tuple[str, ...]) -> Mapping[str, Any]:
    for part in place:
        values = values.get(part) or {}
    return values
