"""What a session asks of the silo ranks before its rounds: their survey, and that they run the same code."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.outcomes import Outcome
from dpfl_plugin.data.base import Cut, Holding, Survey
from dpfl_plugin.errors import ConfigError, DataError
from dpfl_plugin.federation.runtime import ChargeSink
from dpfl_plugin.models.fixed import BUILT_ANEW, fixed_digest, model_digest
from dpfl_plugin.runs import environment
from dpfl_plugin.runs.build import Parts
from dpfl_plugin.runs.environment import changed, file_digests
from dpfl_plugin.runs.folder import silo_folder
from dpfl_plugin.runtimes.mpi import wire
from dpfl_plugin.runtimes.mpi.ranks import GO_ON, Ranks, SiloLostError
from dpfl_plugin.runtimes.mpi.server import MpiRuntime
from dpfl_plugin.runtimes.mpi.wire import Header

NOT_TOLERANT = (
    "this MPI job ends with the first rank that dies. It takes Open MPI 5, started by mpirun --with-ft ulfm "
    "(launchers/mpirun -n N --ulfm ...). dpfl doctor shows whether the MPI has it. Or use on_silo_failure: abort."
)
NO_LIMITS = (
    "silo ranks on several machines, and not all of them have limits of the owners of their records (DPFL_LIMITS, see "
    "docs/limits.md): whoever starts this job decides what is released."
)


class MpiSession:
    """What a session asks of the silo ranks before its rounds; one after another may use the same ranks."""

    def __init__(self, ranks: Ranks, device: Callable[[str], str] = lambda name: name) -> None:
        self._ranks, self._device = ranks, device
        self._survey: Survey | None = None

    def hold(self, config: Config, base: Path, key: Path) -> Holding:
        """Have the silo ranks load their records; rank 0 holds none, and reads no ``key``.

        Raises:
            ConfigError: the ranks do not run the same version of this package, or have not all the device.
            DataError: as in one process, or silo ranks do not see the same data.
        """
        ranks, lasts = self._ranks, config.runtime.on_silo_failure == "continue"
        if config.evaluation.dissimilarity and config.evaluation.reveal != "server":
            raise ConfigError(
                "evaluation.dissimilarity=true: rank 0 would get every silo's gradient without noise. Leave it out, "
                "run in one process, or give evaluation.reveal: server, which no epsilon covers."
            )
        if lasts and not ranks.link.outlives:
            raise ConfigError(f"runtime.on_silo_failure='continue': {NOT_TOLERANT}")
        ranks.timeout, ranks.retries_on_loss = config.runtime.silo_timeout, False
        ranks.dealt = tuple(ranks.silo_ranks)
        if not ranks.dealt:
            raise SiloLostError(f"all silo ranks were lost in the run before this one. {GO_ON}", {})
        here = {"base": str(base.resolve()), "key": str(key.resolve()), "dealt": ranks.dealt}
        here["server"] = [platform.node(), os.getpid()]
        ranks.tell("survey", config=config.model_dump(mode="python"), seed=config.public_seed, **here)
        found = ranks.answers("surveyed", "loading records")
        ranks.processes = {rank: (header["host"], header["pid"]) for rank, header in found.items()}
        ranks.retries_on_loss = lasts
        others = [rank for rank, header in found.items() if header["package"] != environment.package_sha256()]
        if others:
            raise ConfigError(
                f"ranks {', '.join(map(str, others))} run other code of dpfl_plugin than rank 0 does: install the same "
                "version everywhere."
            )
        check_devices(found)
        self._survey = joined(found)
        hosts = tuple(header["host"] for header in found.values())
        notes = (NO_LIMITS,) if _distributed(found) and not all(header["limits"] for header in found.values()) else ()
        device = self._device(config.runtime.device)
        return Holding(self._survey, {}, hosts, device, notes=notes, shared_gpus=shared_gpus(found))

    def runtime(self, parts: Parts, charges: ChargeSink, config: Config) -> MpiRuntime:
        """Get the silo ranks ready for the rounds of a run.

        Raises:
            ConfigError: a rank's model has other frozen layers or buffers than rank 0's: it would train another one.
        """
        assert self._survey is not None
        self._ranks.tell(
            "begin",
            survey=wire.survey_header(self._survey),
            noise_multiplier=parts.noise_multiplier,
            silos=parts.own.facts(parts.rules),
            engine=parts.engine.name,
            chunk_bytes=parts.memory.chunk,
            profile=parts.host.clock.on,
            folder=str(silo_folder(config).resolve()),
        )
        ready = self._ranks.answers("ready", "getting ready")  # of those that were lost, the first round hears
        others = [rank for rank, header in ready.items() if header["fixed"] != fixed_digest(parts.module)]
        if others:
            raise ConfigError(
                f"model: on ranks {', '.join(map(str, others))} it has other frozen layers or buffers than on rank 0. "
                f"{BUILT_ANEW}"
            )
        check_code(ready, file_digests(config), model_digest(parts.module))
        return MpiRuntime(
            self._ranks,
            charges,
            outcome=parts.outcome,
            num_silos=parts.setting.num_silos,
            stack_size=parts.stack,
            aggregation=config.runtime.aggregation,
            stopwatch=parts.host.clock,
        )


def _distributed(found: dict[int, Header]) -> bool:
    """Whether silo ranks are on several machines, so that their records may be of several owners."""
    return len({header["host"] for header in found.values()}) > 1


def check_devices(found: Mapping[int, Header]) -> None:
    """Raise ConfigError unless each silo rank can use its device: for all of them at once."""
    without = [rank for rank, header in found.items() if header["device"]["problem"]]
    if not without:
        return
    others = [rank for rank in found if rank not in without]
    raise ConfigError(
        f"{_named(without)}: {found[without[0]]['device']['problem']}"
        f"{f' It can be used on {_named(others)}.' if others else ''} Start ranks only where torch sees a GPU "
        "(nvidia-smi; srun --gpus-per-task), or use runtime.device: cpu for all of them."
    )


def shared_gpus(found: Mapping[int, Header]) -> tuple[str, ...]:
    """Which silo ranks compute on one GPU, GPU by GPU."""
    by_gpu: dict[tuple[str, str], list[int]] = {}
    for rank, header in found.items():
        if header["device"]["gpu"]:
            by_gpu.setdefault((header["host"], header["device"]["gpu"]), []).append(rank)
    return tuple(
        f"{_named(ranks)} share {found[ranks[0]]['device']['name']} of {host}"
        for (host, _), ranks in by_gpu.items()
        if len(ranks) > 1
    )


def _named(ranks: Sequence[int]) -> str:
    *most, last = map(str, ranks)
    return f"ranks {', '.join(most)} and {last}" if most else f"rank {last}"


def check_code(found: Mapping[int, Header], code: Mapping[str, str], model: str) -> None:
    """Raise ConfigError unless silo ranks have the files of users' code, and made the model, that rank 0 has."""
    for rank, header in found.items():
        changes = changed(header["code"], code)
        if changes or header["model"] != model:
            what = f"{', '.join(changes)} differs" if changes else "the model that it makes is another"
            raise ConfigError(
                f"rank {rank} runs other code than rank 0 does: {what}. Give all ranks the same files and variables."
            )


def joined(found: dict[int, Header]) -> Survey:
    """The survey of all silos, from what each rank says of its own."""
    one, keys = min(found), ("num_silos", "num_classes", "feature_shape", "outcome", "inputs", "caveats")
    first = found[one]  # who always has a silo
    for rank, header in found.items():
        if header["silos"] and any(header[key] != first[key] for key in keys):
            raise DataError(
                f"rank {rank} sees other data than rank {one} does: data files have to be the same everywhere."
            )
    silos = sorted(tuple(silo) for header in found.values() for silo in header["silos"])
    _, num_records, num_test_records, digests, cuts = zip(*silos, strict=True)
    return Survey(
        num_classes=first["num_classes"],
        feature_shape=tuple(first["feature_shape"]),
        caveats=tuple(first["caveats"]),
        num_records=num_records,
        num_test_records=num_test_records,
        digests=digests,
        inputs=wire.read_inputs(first["inputs"]),
        outcome=Outcome.of(first["outcome"]),
        cuts=tuple(Cut(*cut) for cut in cuts if cut),
        key=" ".join(dict.fromkeys(header["key"] for header in found.values())),
    )
