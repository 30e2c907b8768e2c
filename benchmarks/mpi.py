"""What MPI ranks cost and gain, against the same rounds in one process.

    python -m benchmarks.mpi [--rounds 9] [--write]
    python -m benchmarks.mpi --faults [--kills 5] [--write]

Needs `launchers/env mpi openmpi`. Rounds on ranks and in process take turns, so that a busy machine is busy for both.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks import machine, pages
from benchmarks.faults import faults
from benchmarks.table import table
from benchmarks.workloads import WORKLOADS, Workload
from dpfl_plugin.algorithms.base import RoundPlan, Setting
from dpfl_plugin.core.streams import stream
from dpfl_plugin.core.vectors import Layout
from dpfl_plugin.federation.memory import CHUNK
from dpfl_plugin.federation.runtime import Runtime
from dpfl_plugin.federation.silo_group import SiloGroup
from dpfl_plugin.gradients.closed_form import ClosedForm
from dpfl_plugin.gradients.losses import cross_entropy
from dpfl_plugin.models.linear import softmax
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.mechanisms import Gaussian
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.runtimes.in_process import InProcess
from dpfl_plugin.runtimes.mpi.silos import owner

TINY = Workload(
    num_features=40, num_classes=10, num_silos=4, num_records=4, num_participants=4, batch_size=2, local_steps=1
)


class Even(Workload):
    """Of which half the participants of a round have even numbers: two silo ranks have as many of them each."""

    def plan(self, round: int) -> RoundPlan:
        rng = stream(self.seed, "participants", round)
        half = self.num_participants // 2
        chosen = [rng.choice(range(odd, self.num_silos, 2), half, replace=False) for odd in (0, 1)]
        return replace(
            super().plan(round), participants=tuple(sorted(silo for part in chosen for silo in part.tolist()))
        )


MPIRUN: Final = Path(sys.prefix) / "bin" / "mpirun"
LOADS: Final[dict[str, Workload]] = {
    "410": TINY,
    "36,895": replace(TINY, num_features=784, num_classes=47),
    "1,000,000": replace(TINY, num_features=9_999, num_classes=100),
    "10,000,000": replace(TINY, num_features=99_999, num_classes=100),
    "W2": WORKLOADS["W2"],
    "W2, even": Even(**asdict(WORKLOADS["W2"])),
    "64 of W1": replace(WORKLOADS["W1"], num_silos=64, num_participants=64, num_records=1600),
    "20 silos": replace(TINY, num_features=99_999, num_classes=100, num_silos=20, num_participants=20),
}


def host(load: Workload, ids: Sequence[int]) -> SiloGroup:
    """Some of a workload's silos; on a GPU, answered together."""
    module = load.module()
    x = Layout.of(module).flatten(dict(module.named_parameters()))
    silos = {silo: load.silo(silo) for silo in ids}
    return SiloGroup(
        model=module,
        loss=cross_entropy,
        algorithm=load.algorithm,
        rules=PrivacyRules(
            unit="record",
            neighbouring=load.sampler.neighbouring,
            clip_norm=load.clip_norm,
            mechanism=Gaussian(load.noise_multiplier),
            sampler=load.sampler,
        ),
        engine=ClosedForm(module, cross_entropy, CHUNK["cpu"]),
        train=silos,
        test=silos,
        states=load.algorithm.init_silos(x, len(silos)),
        lockstep=load.device != "cpu",
    )


class Server:
    """The server's side of a workload, whatever the runtime."""

    def __init__(self, load: Workload) -> None:
        module = softmax((load.num_features,), load.num_classes)
        x = Layout.of(module).flatten(dict(module.named_parameters()))
        setting = Setting(
            num_silos=load.num_silos, num_participants=load.num_participants, silo_rate=1.0, record_rate=None
        )
        self._load, self._state = load, load.algorithm.init_server(x, setting)

    def round(self, runtime: Runtime, number: int) -> float:
        """Seconds of a round; the server's state goes on."""
        began, load = time.perf_counter(), self._load
        plan = load.plan(number)
        mean = runtime.run_round(load.algorithm.download(self._state), plan, load.draw(number))
        self._state = load.algorithm.aggregate(self._state, mean, plan)
        runtime.commit()
        return time.perf_counter() - began


def rank(name: str, rounds: int, alone: bool, device: str) -> None:
    """One rank of a job; the first prints what was measured as JSON."""
    from mpi4py import MPI

    from dpfl_plugin.runtimes.mpi.link import MpiLink
    from dpfl_plugin.runtimes.mpi.ranks import Ranks
    from dpfl_plugin.runtimes.mpi.server import MpiRuntime
    from dpfl_plugin.runtimes.mpi.silos import SiloRank

    torch.set_num_threads(1)
    link = MpiLink(MPI.COMM_WORLD)
    load = replace(LOADS[name], device=device if link.rank else "cpu")
    stack = 1 if device == "cpu" else load.num_silos
    if link.rank > 0:
        silos = SiloRank(link)
        mine = [silo for silo in range(load.num_silos) if owner(silo, range(1, link.size)) == link.rank]
        silos.take(host(load, mine), torch.device(device), stack, None)
        silos.serve()
        return
    ranks = Ranks(link)
    there, server = MpiRuntime(ranks, Ledger(), num_silos=load.num_silos, stack_size=stack), Server(load)
    server.round(there, 0)
    here = InProcess(host(load, range(load.num_silos)), Ledger()) if alone else None
    server_here = Server(load)
    times: dict[str, list[float]] = {"ranks": [], "alone": [], "server": []}
    for number in range(1, rounds + 1):
        if here is not None:
            times["alone"].append(server_here.round(here, number))
        busy = time.process_time()
        times["ranks"].append(server.round(there, number))
        times["server"].append(time.process_time() - busy)
    ranks.part(60.0)
    print(json.dumps({**times, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))


def job(size: int, name: str, rounds: int, *, alone: bool = True, device: str = "cpu") -> dict[str, Any]:
    """What rank 0 of a job of ``size`` ranks measured, whose silo ranks all compute on ``device``."""
    command = [sys.executable, "-m", "mpi4py", "-m", "benchmarks.mpi", "--rank", name, "--rounds", str(rounds)]
    options = ["--device", device, *([] if alone else ["--not-alone"])]
    done = subprocess.run(
        [MPIRUN, "-n", str(size), *command, *options],
        capture_output=True,
        text=True,
        check=False,
        env=_allowed(),
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _allowed() -> dict[str, str]:
    """As root, and with more ranks than cores."""
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return {**os.environ, **root, "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "OMP_NUM_THREADS": "1"}


def overhead(rounds: int) -> str:
    """A round of 4 silos that hardly compute: what is left is noise, messages and sums."""
    rows = []
    for name in ("410", "36,895", "1,000,000", "10,000,000"):
        found = job(2, name, rounds)
        alone, ranks = statistics.median(found["alone"]), statistics.median(found["ranks"])
        rows.append([name, f"{1e3 * alone:.2f}", f"{1e3 * ranks:.2f}", f"{1e3 * (ranks - alone):+.2f}"])
    return table(["d", "in process, ms", "one silo rank, ms", "difference"], rows)


def speed_up(rounds: int) -> str:
    """W2 on one and two silo ranks.

    A round lasts as long as the rank with most participants works: what two ranks can gain at most depends on the draw.
    """
    rows = []
    for name in ("W2", "W2, even"):
        for size in (2, 3):
            found = job(size, name, rounds)
            plans = [LOADS[name].plan(number).participants for number in range(1, rounds + 1)]
            longest = sum(max(Counter(owner(silo, range(1, size)) for silo in plan).values()) for plan in plans)
            most = sum(map(len, plans)) / longest
            ratio = sum(found["alone"]) / sum(found["ranks"])
            share = sum(found["server"]) / sum(found["ranks"])
            seconds = f"{statistics.mean(found['ranks']):.3f}"
            rows.append([name, str(size - 1), seconds, f"{ratio:.2f}", f"{most:.2f}", f"{share:.1%}"])
    return table(["", "silo ranks", "s per round", "times in process", "at most", "rank 0 busy"], rows)


def memory() -> str:
    """Rank 0's peak with 20 silos of 10 million parameters, two vectors each."""
    gigabytes = job(3, "20 silos", 1, alone=False)["peak"] / 1e9
    return f"20 silos that send two vectors of d = 10,000,000 each: rank 0 needs {gigabytes:.2f} GB at most."


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mpi", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, help="of each kind (default: 9)")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/mpi.md")
    parser.add_argument("--faults", action="store_true", help="instead: seconds from a kill until it goes on")
    parser.add_argument("--kills", type=int, default=5, help="with --faults, of each kind (default: 5)")
    parser.add_argument("--rank", choices=LOADS, help=argparse.SUPPRESS)
    parser.add_argument("--not-alone", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--device", default="cpu", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.rank is not None:
        rank(options.rank, options.rounds, not options.not_alone, options.device)
        return
    facts = "; ".join(f"{key}: {value}" for key, value in machine.facts().items())
    if options.faults:
        text = f"{facts}.\n\n{faults(options.kills, _allowed())}"
        pages.show("docs/mpi.md", "faults", text, write=options.write)
        return
    text = "\n\n".join([f"{facts}.", overhead(options.rounds), speed_up(options.rounds), memory()])
    pages.show("docs/mpi.md", "mpi", text, write=options.write)


if __name__ == "__main__":
    main()
