"""What a run needs, how it is cut to what there is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dpfl_plugin.algorithms.base import Setting
from dpfl_plugin.algorithms.scaffold import Scaffold
from dpfl_plugin.errors import ConfigError, MemoryShortError
from dpfl_plugin.federation import memory
from dpfl_plugin.gradients.base import Records
from tests.cli.command import write

CPU = torch.device("cpu")
GIB = 2**30
CHUNK = memory.CHUNK["cpu"]


@pytest.mark.parametrize(
    ("given", "size"),
    [
        ("8GB", 8e9),
        ("512 MiB", 512 * 2**20),
        ("1.5 Gi", 1.5 * GIB),
        ("1000", 1000),
        ("2k", 2000),
        ("1TiB", 2**40),
        ("1KB", 1000),
        ("3gb", 3e9),
    ],
)
def test_sizes(given: str, size: float) -> None:
    assert memory.parse(given) == size


def test_chunks_are_of_one_size_wherever_there_is_enough_and_powers_of_two_elsewhere() -> None:
    def chunk(budget: int) -> int:
        return memory.plan(str(budget), CPU, 0, [("records", GIB)], None).chunk

    assert {chunk(GIB + more) for more in (CHUNK, CHUNK + 1, 10 * GIB)} == {CHUNK}
    assert chunk(GIB + CHUNK - 1) == CHUNK // 2
    assert chunk(GIB + 3 * memory.MIB) == 2 * memory.MIB
    with pytest.raises(ConfigError, match=r"records 1 GiB\) and 1 MiB or more"):
        chunk(GIB + memory.MIB - 1)


def test_a_chunk_that_another_process_chose_has_to_fit() -> None:
    assert memory.plan(str(GIB), CPU, 0, [], 2**24).chunk == 2**24
    with pytest.raises(MemoryShortError, match=r"32 MiB are left .*memory_budget") as error:
        memory.plan(str(2**25), CPU, 0, [], 2**26)
    assert error.value.public == "memory: cpu has no room for 64 MiB of gradients at a time beside records and states"


def test_the_default_is_a_share_of_what_is_available() -> None:
    free = memory.available(CPU)
    plan = memory.plan(None, CPU, 10**9, [("records", 10**9)], None)
    assert free > 2**20 and abs(plan.budget - 10**9 - memory.SHARE * free) < 0.5 * free
    assert "available" in plan.stated and "records 954 MiB" in plan.described()
    assert plan.summary().endswith(f"of the {memory.text(plan.budget)} allowed")


def silos(count: int) -> list[Records]:
    return [Records(torch.zeros(100, 20), torch.zeros(100, dtype=torch.int64)) for _ in range(count)]


@pytest.mark.parametrize("stack", [1, 3])
def test_needs_grow_with_silos_vectors_and_stack(stack: int) -> None:
    """SCAFFOLD: a control of d numbers at each silo; model and control at the server, and sent."""
    algorithm, model = Scaffold(local_steps=1, local_lr=0.1), torch.zeros(1000)
    setting = Setting(
        num_silos=50,
        num_participants=5,
        silo_rate=0.1,
        record_rate=0.1,
        batch_size=None,
        num_records=100,
        rounds=1,
        clip_norm=1.0,
        epsilon=None,
        delta=1e-5,
    )
    needs = dict(memory.fixed_needs(algorithm, setting, model, silos(50), stack=stack, batch_size=10))
    assert needs["records"] == 50 * 100 * (20 * 4 + 8)
    assert needs["states of silos"] == (50 + 5) * 4000
    assert needs["silos at work"] == stack * 8 * 4000
    assert needs["a batch"] == 10 * 80
    assert needs["the model"] == 2 * 4000
    assert needs["the engine's vectors"] == (1 + 1 + 2 + 2) * 4000  # of float64 two of the sums
    others = ("records", "a batch", "gaps between vectors", "sums of blocks")
    vectors = sum(needs.values()) - sum(needs[name] for name in others)
    assert needs["gaps between vectors"] == pytest.approx(memory.GAPS * vectors, abs=1)
    server = dict(memory.fixed_needs(algorithm, setting, model, [], stack=stack, batch_size=0))
    assert server["records"] == server["states of silos"] == server["a batch"] == 0
    assert server["the server's vectors"] >= 2 * 4000


def test_a_stack_that_is_answered_together_needs_its_padded_batches_and_its_records_once_more() -> None:
    def setting(participants: int) -> Setting:
        return Setting(num_silos=50, num_participants=participants, silo_rate=0.1, record_rate=0.1)

    needs = dict(memory.of_lockstep(setting(5), silos(50), stack=3, batch_size=16))
    assert needs == {"records in one place": 50 * 100 * (20 * 4 + 8), "batches of a stack": 3 * (16 + 24) * 80}
    assert dict(memory.of_lockstep(setting(5), silos(50), stack=2**31, batch_size=16))["batches of a stack"] == (
        5 * (16 + 24) * 80
    )
    full = dict(memory.of_lockstep(setting(50), silos(4), stack=2**31, batch_size=100))
    assert full["batches of a stack"] == 4 * 100 * 80, "no batch is longer than its silo"
    assert sum(dict(memory.of_lockstep(setting(5), [], stack=3, batch_size=0)).values()) == 0, "a server holds none"


def test_a_graph_needs_a_stacks_batches_once_more_and_what_is_made_of_them() -> None:
    setting = Setting(num_silos=50, num_participants=5, silo_rate=0.1, record_rate=0.1)
    needs = memory.of_lockstep(setting, silos(50), stack=3, batch_size=16)
    expected = dict(needs)["batches of a stack"] + memory.CHUNK["cuda"] + 3 * 3 * 4 * 1000
    assert memory.of_graph(setting, torch.zeros(1000), needs, 50, stack=3) == expected
    assert memory.of_graph(setting, torch.zeros(1000), needs, 0, stack=3) == 0, "a server records nothing"


def test_device_noise_needs_what_is_drawn_ahead() -> None:
    setting = Setting(num_silos=50, num_participants=5, silo_rate=0.1, record_rate=0.1)
    small, large = torch.zeros(10), torch.zeros(1).expand(10**8)
    assert memory.of_device_noise(setting, small, 50, stack=3) == 4 * 2**25 + 128 * 30
    assert memory.of_device_noise(setting, large, 50, stack=3) == 4 * 3 * 8 * 10**8 + 128 * 2**21
    assert memory.of_device_noise(setting, large, 0, stack=3) == 0


def test_what_says_that_memory_is_short() -> None:
    assert memory.is_short(torch.OutOfMemoryError("")) and memory.is_short(MemoryError())
    with pytest.raises(RuntimeError) as found:
        torch.empty(2**60)
    assert memory.is_short(found.value)
    assert not memory.is_short(RuntimeError("shapes differ"))


def test_a_budget_beyond_the_machine_is_told() -> None:
    assert "more than the" in memory.plan("1000TB", CPU, 0, [], None).warning
    more = str(memory.available(CPU) + 4 * GIB)
    assert memory.plan(more, CPU, 0, [], None).warning
    assert memory.plan(more, CPU, 8 * GIB, [], None).warning == "", "what is held already is no more"


def test_advice_is_about_what_can_be_lowered() -> None:
    for stack, told in ((1, False), (3, True)):
        with pytest.raises(ConfigError) as found:
            memory.plan("1MB", CPU, 0, [("records", GIB)], None, stack)
        assert ("runtime.stack" in str(found.value)) == told


PEAK = """
import sys
from pathlib import Path
from dpfl_plugin.cli.run import run
run(Path(sys.argv[1]), sys.argv[2:], None, None, as_json=True, verbose=False)
status = Path("/proc/self/status").read_text()
print(next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM")))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads a process's peak from /proc")
def test_a_run_stays_within_what_is_counted_of_it(tmp_path: Path) -> None:
    """Beyond what a tiny run takes: vectors of 32 MB, which are large beside whatever else differs."""
    changes = {
        "data": {"dataset": {"name": "synthetic", "num_features": 2000, "records_per_silo": 20}, "num_silos": 3},
        "algorithm": {"name": "fedavg", "local_steps": 1, "local_lr": 0.1},
        "engine": "dense",
        "rounds": 2,
        "out": str(tmp_path / "runs"),
    }

    def peak(width: int) -> tuple[int, int]:
        path = write(tmp_path, {**changes, "model": {"name": "mlp", "hidden": [width, width]}, "name": f"of-{width}"})
        done = subprocess.run(
            [sys.executable, "-c", PEAK, str(path), *(["runtime.memory_budget=800MB"] if width > 100 else [])],
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parents[2],
        )
        return int(done.stdout.splitlines()[-1]), 800_000_000

    large, budget = peak(2000)
    small, _ = peak(8)
    assert 0.4 * budget < large - small < 1.1 * budget
