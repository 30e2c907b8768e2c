"""Which device a rank takes."""

from collections import Counter

import pytest

from dpfl_plugin.runtimes.mpi.job import dealt_device


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
