"""What a FedML project gives: its arguments, its settings of this package and its loaders, all of it checked."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from torch import nn

from dpfl_plugin.adapters.agreement import Agreement, Permit, agree
from dpfl_plugin.adapters.loaders import check_apart
from dpfl_plugin.adapters.platforms import folder_from
from dpfl_plugin.errors import ConfigError, UnsupportedError
from dpfl_plugin.owners.limits import Surroundings

SOURCE: Final = "dpfl_args: dpfl"
LOG: Final = logging.getLogger("dpfl_plugin.fedml")
NUM_RECORDS, RECORDS = 4, 5  # of FedML's list of a data set: numbers of records, and loaders, by silo
OFF: Final = ("enable_dp", "enable_attack", "enable_defense", "enable_fhe", "enable_secagg")


def surroundings(args: Any) -> Surroundings:
    """Where this process runs, by its own arguments; what is not FedML's simulation is a deployment."""
    return "simulation" if getattr(args, "training_type", None) == "simulation" else "deployment"


def is_silo(args: Any) -> bool:
    return str(getattr(args, "rank", "")) != "0"


def agreement_of(args: Any, model: nn.Module, permit: Permit | None = None) -> Agreement:
    values = dict(getattr(args, "dpfl", None) or {})
    if not values:
        raise ConfigError("fedml_config.yaml has no dpfl_args: {dpfl: {algorithm: ..., privacy: ..., rounds: ...}}.")
    values.pop("folder", None)
    return agree(values, num_silos=int(args.client_num_in_total), model=model, source=SOURCE, permit=permit)


def folder_of(args: Any) -> Path:
    return folder_from(args.dpfl.get("folder"), f"{SOURCE}: folder", "")


def check(args: Any, agreement: Agreement) -> None:
    if getattr(args, "federated_optimizer", "FedAvg") != "FedAvg":
        raise UnsupportedError(
            f"federated_optimizer={args.federated_optimizer!r}: the algorithm is that of {SOURCE}, which FedML's "
            "FedAvg carries. Use federated_optimizer: FedAvg."
        )
    for key in OFF:
        if getattr(args, key, False):
            raise UnsupportedError(f"{key}: true changes uploads on their way, after they were charged. Leave it out.")
    known = ("sp", "MPI") if surroundings(args) == "simulation" else ("GRPC", "MPI")
    if args.backend not in known:
        raise UnsupportedError(f"backend={args.backend!r} is not tested here. Use {' or '.join(known)}.")
    if surroundings(args) == "deployment" and getattr(args, "scenario", "horizontal") != "horizontal":
        raise UnsupportedError(f"scenario={args.scenario!r} deals a silo's records to processes. Use horizontal.")
    if surroundings(args) == "deployment" and int(args.client_num_per_round) != agreement.num_silos:
        raise UnsupportedError(
            f"client_num_per_round={args.client_num_per_round} of client_num_in_total={agreement.num_silos}: in "
            "cross_silo FedML then hands each process another silo's data in every round, which an owner's machine "
            "does not have. Ask all of them; a simulation may ask some."
        )
    if agreement.config.silo_rate != 1:
        raise UnsupportedError(f"{SOURCE}: silo_rate: FedML picks the silos. Use its client_num_per_round.")


def check_records(dataset: Sequence[Any]) -> dict[int, int]:
    """Of all silos whose loaders this process has; their numbers of records.

    Raises:
        DataError, UnsupportedError: see `check_apart`.
    """
    counts = check_apart(dataset[RECORDS])
    for silo, count in counts.items():
        said = dataset[NUM_RECORDS].get(silo) if isinstance(dataset[NUM_RECORDS], Mapping) else None
        if type(said) is int and said != count:
            LOG.warning(
                "silo %d: its loader gives %d records, and FedML's list of the data set says %d. The %d are read: see "
                "whether they are what you mean",
                silo,
                count,
                said,
                count,
            )
    return counts
