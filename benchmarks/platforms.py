"""`python -m benchmarks.platforms [--runs 3]`: what the adapters cost; writes a part of docs/adapters.md.

The example projects of Flower and FedML, as they were (`plain`), and with the lines of this package: without noise, and
with differential privacy. Runs take turns; a round is timed by the platform's own server, from one to the next, so that
no start-up is in it. A deployment is FedML's cross-silo on ranks: a process for the server and for each silo, whose
owners have set limits; each trains a small CNN once through 2,000 records of CIFAR's size, in batches of 32. The
simulation of many silos is Flower's again, of 200 with a linear model of 50 records each.

What is the adapter's own: FedML's sp and the deployment have the same private rounds without any platform beside them
(`benchmarks.in_process`); of silos in processes of their own, one silo's share of such a round.

Needs `launchers/env flower` and `launchers/env fedml`.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import re
import shutil
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.machine import facts
from benchmarks.pages import ROOT, put
from benchmarks.table import table

WITHOUT: Final = "ours, private, without the platform"
VARIANTS: Final = {
    "as it was": "plain",
    "ours, noise 0 (not private)": "private",
    "ours, private": "private",
    WITHOUT: "private",
}
ROUNDS: Final = 10  # of the examples
DEPLOYED: Final = 2  # silos
MANY: Final = 200  # silos
FLOWER, FEDML = ROOT / "examples" / "flower_existing_project", ROOT / "examples" / "fedml_existing_project"

STAMP: Final = """
def _stamp():
    import os, time
    with open(os.environ["DPFL_BENCHMARK_TIMES"], "a") as file:
        file.write(f"{time.perf_counter()}\\n")
"""
FLOWER_STAMP: Final = """
    configure = strategy.configure_train
    strategy.configure_train = lambda *args, **more: (_stamp(), configure(*args, **more))[1]
"""
FEDML_STAMP: Final = """
from fedml.cross_silo.server.fedml_aggregator import FedMLAggregator
from fedml.simulation.mpi.fedavg.FedAVGAggregator import FedAVGAggregator
from fedml.simulation.sp.fedavg import FedAvgAPI

def _stamped(method):
    return lambda *args, **more: (_stamp(), method(*args, **more))[1]

FedAvgAPI._client_sampling = _stamped(FedAvgAPI._client_sampling)
FedAVGAggregator.client_sampling = _stamped(FedAVGAggregator.client_sampling)
FedMLAggregator.client_selection = _stamped(FedMLAggregator.client_selection)
"""
IN_PROCESS: Final = """
if __name__ == "__main__":
    import yaml

    from benchmarks.in_process import run

    with open("fedml_config.yaml") as file:
        settings = yaml.safe_load(file)["dpfl_args"]["dpfl"]
    run(settings, Net(), load_data()[5], _stamp)
"""
CNN: Final = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        first, second = nn.Conv2d(3, 16, 5, 2), nn.Conv2d(16, 32, 3, 2)
        self.layers = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Flatten(), nn.Linear(32 * 6 * 6, 10))

    def forward(self, x):
        return self.layers(x)


def load_data():
    import os

    os.environ["DPFL_LIMITS"] = os.environ["DPFL_BENCHMARK_LIMITS"].format(os.environ["OMPI_COMM_WORLD_RANK"])
    rng = torch.Generator().manual_seed(1)

    def loader(count):
        x, y = torch.randn(count, 3, 32, 32, generator=rng), torch.randint(10, (count,), generator=rng)
        return DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)

    train, test = ({silo: loader(count) for silo in range(NUM_SILOS)} for count in (2000, 100))
    whole = loader(100)
    return [2000 * NUM_SILOS, 100, whole, whole, dict.fromkeys(train, 2000), train, test, 10]

"""

TINY: Final = """

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Linear(20, 2)

    def forward(self, x):
        return self.layers(x)


def load_data(partition_id, num_partitions):
    rng = torch.Generator().manual_seed(partition_id)
    x = torch.randn(50, 20, generator=rng)
    loader = DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=10, shuffle=True)
    return loader, loader
"""


@dataclass(frozen=True, slots=True)
class Place:
    """A platform, and how its project is run in a folder: (copy of plain or private, scratch folder) -> command."""

    name: str
    example: Path
    command: Callable[[Path, Path], list[str]]
    environment: Callable[[Path], dict[str, str]]
    silos: int = 5
    rounds: int = ROUNDS
    without: bool = False  # whether the same is timed without it

    @property
    def variants(self) -> list[str]:
        """Without noise no owner's limits hold, and a deployment does not begin; of many silos it tells no more."""
        found = [variant for variant in VARIANTS if self.silos not in (DEPLOYED, MANY) or "noise 0" not in variant]
        return found if self.without else [variant for variant in found if variant != WITHOUT]


def _flower_environment(scratch: Path) -> dict[str, str]:
    port = 20000 + os.getpid() % 20000
    return {
        "PATH": f"{ROOT / '.venv-flower' / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "FLWR_HOME": str(scratch / "flwr"),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(port),
        "FLWR_LOCAL_CONTROL_API_PORT": str(port + 1),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    }


def _fedml_environment(scratch: Path) -> dict[str, str]:
    return {
        "PYTHONPATH": f"{FEDML / 'offline'}{os.pathsep}{ROOT}",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }


def _fedml(project: Path, *before: str) -> list[str]:
    return [*before, str(project / "main.py"), "--cf", str(project / "fedml_config.yaml")]


def _flower(project: Path, silos: int) -> list[str]:
    asked = "run", str(project), "--federation-config", f"num-supernodes={silos}", "--stream"
    return [str(ROOT / ".venv-flower" / "bin" / "flwr"), *asked]


BIN: Final = ROOT / ".venv-fedml" / "bin"
PLACES: Final = (
    Place(
        "Flower, simulation engine",
        FLOWER,
        lambda project, scratch: _flower(project, 5),
        _flower_environment,
    ),
    Place(
        "FedML, sp",
        FEDML,
        lambda project, scratch: _fedml(project, str(BIN / "python")),
        _fedml_environment,
        without=True,
    ),
    Place(
        "FedML, MPI (6 ranks)",
        FEDML,
        lambda project, scratch: _fedml(
            project, str(BIN / "mpirun"), "--bind-to", "none", "-n", "6", str(BIN / "python"), "-m", "mpi4py"
        ),
        _fedml_environment,
    ),
    Place(
        "FedML, a deployment over MPI, CNN",
        FEDML,
        lambda project, scratch: _fedml(
            project, str(BIN / "mpirun"), "--bind-to", "none", "-n", "3", str(BIN / "python"), "-m", "mpi4py"
        ),
        _fedml_environment,
        silos=DEPLOYED,
        rounds=5,
        without=True,
    ),
)

MANY_PLACE: Final = Place(
    f"Flower, simulation engine, {MANY} silos",
    FLOWER,
    lambda project, scratch: _flower(project, MANY),
    _flower_environment,
    silos=MANY,
    rounds=4,
)


def seconds(place: Place, variant: str) -> list[float]:
    """Of all rounds that were timed but the first, in a run of its own.

    Raises:
        RuntimeError: the run failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        project, times = scratch / "project", scratch / "times"
        shutil.copytree(place.example / VARIANTS[variant], project)
        (scratch / "home").mkdir()
        for rank in range(1, DEPLOYED + 1):  # of whom a deployment asks
            limits = scratch / f"limits-{rank}.yaml"
            limits.write_text(
                f"folder: {scratch / f'owner-{rank}'}\nepsilon: 100\ndelta: 0.001\nmin_records: 2000\nnum_classes: 10\n"
            )
            limits.chmod(0o600)
        _prepare(place, project, variant)
        environment = {
            **os.environ,
            **place.environment(scratch),
            "HOME": str(scratch / "home"),
            "OMP_NUM_THREADS": "1",
            "DPFL_BENCHMARK_TIMES": str(times),
            "DPFL_BENCHMARK_LIMITS": str(scratch / "limits-{}.yaml"),
        }
        with (scratch / "log").open("wb") as log:
            command = place.command(project, scratch)
            if variant == WITHOUT:
                environment["OMPI_COMM_WORLD_RANK"] = "1"  # whose limits it is to have: it asks for none
                command = [str(BIN / "python"), str(project / "main.py")]
            one = subprocess.Popen(
                command,
                cwd=project,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        while one.poll() is None and len(_stamps(times)) < place.rounds:  # how a platform ends is no part of a round
            time.sleep(0.2)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(one.pid, signal.SIGKILL)
        one.wait()
        _end(f"DPFL_BENCHMARK_TIMES={times}")
        stamps = _stamps(times)
        if len(stamps) < place.rounds:
            raise RuntimeError(f"{place.name}, {variant}: {(scratch / 'log').read_text()[-3000:]}")
    share = place.silos if variant == WITHOUT and place.silos == DEPLOYED else 1  # silos of a deployment work at once
    return [(after - before) / share for before, after in itertools.pairwise(stamps[1:])]


def _stamps(times: Path) -> list[float]:
    return [float(line) for line in times.read_text().split()] if times.exists() else []


def _prepare(place: Place, project: Path, variant: str) -> None:
    settings = project / ("pyproject.toml" if place.example == FLOWER else "fedml_config.yaml")
    text = settings.read_text()
    if "noise 0" in variant:
        text, found = re.subn(r"epsilon(\W+)8\.0", r"noise_multiplier\g<1>0.0", text)
        assert found == 1, settings
    if "MPI" in place.name:
        text = text.replace('backend: "sp"', 'backend: "MPI"')
        ranks = f"device_args:\n  worker_num: {place.silos}\n  gpu_mapping_key: mapping_default"
        text = text.replace("device_args:", ranks)
    if place.silos == DEPLOYED:
        in_cross_silo = "cross_silo\\n  scenario: horizontal\\n  using_mlops: false\\n  config_version: release"
        for old, new in (
            (r'"simulation"', in_cross_silo),
            (r"(client_num\w+): 5", rf"\g<1>: {DEPLOYED}"),
            ("local_steps: 10", "local_steps: 63"),
            ("record_rate: 0.2", "record_rate: 0.016"),
        ):
            text = re.sub(old, new, text)
    if place.silos == MANY:
        text = text.replace("num_silos = 5", f"num_silos = {MANY}")
        task = project / "digits" / "task.py"
        before, mark, after = task.read_text().partition("\n\ndef train(")
        assert mark, task
        task.write_text(f"{before}{TINY}\n{mark}{after}")
    settings.write_text(text)
    if place.example == FLOWER:
        code = project / "digits" / "server_app.py"
        marks = {"\napp = ServerApp": STAMP, "    rounds = ": FLOWER_STAMP}
    else:
        code = project / "main.py"
        marks = {"\nNUM_SILOS": STAMP + FEDML_STAMP}
        if place.silos == DEPLOYED:
            marks['\nif __name__ == "__main__":'] = CNN
    text = code.read_text().replace("NUM_SILOS = 5", f"NUM_SILOS = {place.silos}")
    text = text.replace("min_available_nodes=5", f"min_available_nodes={place.silos}")
    for mark, more in marks.items():
        assert text.count(mark) == 1, (code, mark)
        text = text.replace(mark, more.removeprefix("\n") + mark)
    if variant == WITHOUT:
        text = text.partition('\nif __name__ == "__main__":')[0] + IN_PROCESS
    code.write_text(text)


def _end(mark: str) -> None:
    """End what a run leaves running, and ranks: told by a variable of its own, which no other process has."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (process / "environ").read_bytes().split(b"\0") and int(process.name) != os.getpid():
                os.kill(int(process.name), 9)


def lines(example: Path) -> tuple[int, int]:
    """(lines that a project gets, lines that it loses) from `plain` to `private`."""
    done = subprocess.run(["diff", "-ru", "plain", "private"], cwd=example, capture_output=True, text=True)
    changed = [line for line in done.stdout.splitlines() if not line.startswith(("---", "+++"))]
    return tuple(sum(line.startswith(sign) for line in changed) for sign in "+-")  # type: ignore[return-value]


def rounds_table(runs: int, places: Sequence[Place] = PLACES, of: str = "5 silos (deployment: 2)") -> str:
    """Seconds of a round: medians over all rounds; ratios of medians, run by run, and their median."""
    rows = []
    for place in places:
        found: dict[str, list[float]] = {variant: [] for variant in place.variants}
        for _ in range(runs):
            for variant in place.variants:
                found[variant].append(statistics.median(seconds(place, variant)))
        print(place.name, found, flush=True)
        first = next(iter(found.values()))
        for variant, medians in found.items():
            ratio = statistics.median(one / base for one, base in zip(medians, first, strict=True))
            more = statistics.median(one - base for one, base in zip(medians, first, strict=True))
            values = [f"{statistics.median(medians):.3f}", f"{ratio:.2f}", f"{1000 * more / place.silos:.0f}"]
            rows.append([f"{place.name}: {variant}", *values])
    return table(
        [f"a round of {of}", "median s", "times as it was", "ms more for each silo"],
        rows,
    )


def lines_table() -> str:
    rows = [[name, *map(str, lines(example))] for name, example in (("Flower", FLOWER), ("FedML", FEDML))]
    return table(["project", "lines that it gets", "lines that it loses"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="of each variant (default: 3)")
    parser.add_argument("--only", default="", help="places whose name has this; the page stays as it is")
    parser.add_argument("--many", action="store_true", help=f"the simulation of {MANY} silos alone, into the page")
    arguments = parser.parse_args()
    if arguments.many:
        _put_many(arguments.runs)
        return
    if arguments.only:
        print(rounds_table(arguments.runs, [place for place in PLACES if arguments.only in place.name]))
        return
    put("docs/adapters.md", "lines table", lines_table())
    put("docs/adapters.md", "rounds table", f"{rounds_table(arguments.runs)}\n\n{_about(arguments.runs)}")
    _put_many(arguments.runs)


def _put_many(runs: int) -> None:
    found = rounds_table(runs, [MANY_PLACE], f"{MANY} silos")
    put("docs/adapters.md", "many silos table", f"{found}\n\n{_about(runs)}")


def _about(runs: int) -> str:
    known = facts()
    cores = known["cores this process may use"]
    return f"{known['date']}, {known['processor']}, {cores} cores, not idle; runs of each: {runs}."


if __name__ == "__main__":
    main()
