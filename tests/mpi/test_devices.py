"""Which device a rank takes, and what is said of all ranks' devices."""

from collections import Counter
from typing import Any

import pytest

from dpfl_plugin.errors import ConfigError
from dpfl_plugin.runtimes.mpi.job import dealt_device
from dpfl_plugin.runtimes.mpi.session import check_devices, shared_gpus


@pytest.mark.parametrize(("num_ranks", "num_gpus"), [(1, 1), (2, 4), (4, 4), (5, 4), (9, 2), (3, 1)])
def test_silo_ranks_of_a_node_take_its_gpus_in_turn(num_ranks: int, num_gpus: int) -> None:
    """No GPU has two ranks more than another, and none is left out while another has two."""
    dealt = Counter(dealt_device("cuda", rank, num_gpus, server=False) for rank in range(num_ranks))
    assert set(dealt) <= {f"cuda:{gpu}" for gpu in range(num_gpus)} and sum(dealt.values()) == num_ranks
    held = [dealt[f"cuda:{gpu}"] for gpu in range(num_gpus)]
    assert max(held) - min(held) <= 1


def test_other_devices_are_taken_as_they_are() -> None:
    assert dealt_device("cuda:1", 0, 4, server=False) == "cuda:1"
    assert dealt_device("cpu", 3, 4, server=False) == "cpu"
    assert dealt_device("cuda", 2, 0, server=False) == "cuda", "which is refused by name where it is used"


def test_a_server_without_a_gpu_uses_the_cpu() -> None:
    assert dealt_device("cuda", 0, 0, server=True) == dealt_device("cuda:1", 0, 0, server=True) == "cpu"
    assert dealt_device("cuda", 0, 2, server=True) == "cuda:0"


def surveyed(*devices: tuple[str, str, str, str]) -> dict[int, dict[str, Any]]:
    """What ranks say of their (host, name, gpu, problem)."""
    keys = ("name", "gpu", "problem")
    return {
        1 + n: {"host": host, "device": dict(zip(keys, rest, strict=True))} for n, (host, *rest) in enumerate(devices)
    }


def test_ranks_that_share_a_gpu_are_named_whatever_they_call_it() -> None:
    """Where Slurm binds GPUs to tasks, each rank's own is cuda:0."""
    ranks = [("a", "cuda:0", "x", ""), ("a", "cuda:1", "y", ""), ("a", "cuda:0", "x", ""), ("b", "cuda:0", "x", "")]
    assert shared_gpus(surveyed(*ranks)) == ("ranks 1 and 3 share cuda:0 of a",)
    assert shared_gpus(surveyed(("a", "cuda:0", "x", ""), ("a", "cuda:0", "y", ""))) == ()
    assert shared_gpus(surveyed(*[("a", "cpu", "", "")] * 3)) == ()


def test_ranks_without_a_device_are_named_at_once() -> None:
    bad, good = ("a", "cuda", "", "runtime.device='cuda' cannot be used here: no driver."), ("b", "cuda:0", "x", "")
    check_devices(surveyed(good, good))
    with pytest.raises(ConfigError) as error:
        check_devices(surveyed(bad, good, bad))
    assert str(error.value).startswith(
        "ranks 1 and 3: runtime.device='cuda' cannot be used here: no driver. It can be "
    )
    assert "used on rank 2." in str(error.value)
