"""What every rank is and how fast it is reached, for `dpfl doctor`; and what it computes on."""

from __future__ import annotations

import os
import statistics
import time
from typing import TYPE_CHECKING, Any

import torch

from dpfl_plugin.errors import ConfigError
from dpfl_plugin.runs.environment import machine, package_sha256
from dpfl_plugin.runs.models import usable_device

if TYPE_CHECKING:
    from dpfl_plugin.runtimes.mpi.ranks import Ranks

PINGS = 20
FLOATS = 2**22  # 16 MiB


def device_of(name: str) -> dict[str, str]:
    """Of a device by its name in this process: ``name``; ``gpu``, the same in all processes of a machine, and empty for
    a CPU; ``problem``, why torch cannot use it, or empty."""
    try:
        device = usable_device(name)
    except ConfigError as error:
        return {"name": name, "gpu": "", "problem": str(error)}
    gpu = str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""
    return {"name": name, "gpu": gpu, "problem": ""}


def facts(rank: int, device: str) -> dict[str, Any]:
    """Of this process; ``device`` is what the rank takes where a configuration says cuda."""
    usable = device if device.startswith("cuda") and torch.cuda.is_available() else "cpu"
    return {
        "rank": rank,
        "host": os.uname().nodename,
        "pid": os.getpid(),
        "cores": len(os.sched_getaffinity(0)),
        "gpus": torch.cuda.device_count(),
        "package": package_sha256(),
        **machine(usable),
        "device": usable,
    }


def probe(ranks: Ranks, own: dict[str, Any]) -> list[dict[str, Any]]:
    """The facts of all ranks, ``own`` first; with those of silo ranks the time of a message there and back in seconds,
    and MB/s of a large vector from rank 0."""
    ranks.tell("report")
    found = [header["facts"] for header in ranks.answers("report", "reporting").values()]
    value = torch.zeros(FLOATS)
    for silo_rank in found:
        rank = silo_rank["rank"]
        silo_rank["latency"] = statistics.median(_ping(ranks, rank) for _ in range(PINGS))
        _send(ranks, rank, value)  # once for buffers to be made
        silo_rank["mb_per_second"] = 4e-6 * FLOATS / _send(ranks, rank, value)
    return [own, *found]


def _ping(ranks: Ranks, rank: int) -> float:
    began = time.perf_counter()
    ranks.tell_some([rank], "ping")
    ranks.answers("pong", "answering", [rank])
    return time.perf_counter() - began


def _send(ranks: Ranks, rank: int, value: torch.Tensor) -> float:
    began = time.perf_counter()
    ranks.tell_some([rank], "take", floats=value.numel())
    ranks.finish([ranks.link.push(rank, value)], [rank], "taking a vector")
    ranks.answers("took", "taking a vector", [rank])
    return time.perf_counter() - began
