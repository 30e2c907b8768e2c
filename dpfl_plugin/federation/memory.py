"""What a run needs in memory, and whether it has it: said before the run begins, not by the kernel in its midst."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from dpfl_plugin.algorithms.base import Algorithm, Setting
from dpfl_plugin.config.schema import SIZE
from dpfl_plugin.core.device_noise import AHEAD_BYTES, MOST_PAIRS_AT_ONCE
from dpfl_plugin.errors import ConfigError, MemoryShortError
from dpfl_plugin.gradients.base import Records
from dpfl_plugin.gradients.blocks import AT_ONCE, filled

MIB: Final = 2**20
# Of per-example gradients. More is not faster: on a CPU for its caches, on a GPU where it is busy. A fixed size, since
# sums round by it.
CHUNK: Final = {"cpu": 256 * MIB, "cuda": 2048 * MIB}
LEAST_CHUNK: Final = MIB
# Vectors are of d numbers in the model's format. What takes float64 counts twice; what an engine adds to what it keeps
# (blocks of a sum, say) is added to ENGINE_VECTORS, and what `choice` compares it in to TRIAL_VECTORS.
# That an engine may keep: its copy of the parameters, a block's sum, that in float64, and the oracle's sum in float64.
ENGINE_VECTORS: Final = 6
TRIAL_VECTORS: Final = 12  # in which an engine is compared with autograd on made-up records
# Of what vectors take: room that the allocator keeps between those that are freed. What the trials leave of it is
# handed back (`core.heap`): it was up to half of all vectors.
GAPS: Final = 0.2
SHARE: Final = 0.8  # of what is available: the interpreter, torch and the system need the rest
_UNITS: Final = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


@dataclass(frozen=True, slots=True)
class Memory:
    """Of one process.

    Attributes:
        budget: bytes that the run's tensors may take; of whom ``stated``.
        needs: (what, bytes) that it has to hold whatever the engine.
        chunk: bytes for per-example gradients at a time.
        warning: why the budget may bound nothing; empty if there is room for it.
    """

    budget: int
    stated: str
    needs: tuple[tuple[str, int], ...]
    chunk: int
    warning: str = ""

    @property
    def left(self) -> int:
        """For an engine."""
        return self.budget - sum(size for _, size in self.needs)

    def summary(self) -> str:
        """In a few words, for the log."""
        total = sum(size for _, size in self.needs)
        return f"{text(total)}, and {text(self.chunk)} for gradients, of the {text(self.budget)} allowed"

    def described(self) -> str:
        parts = ", ".join(f"{what} {text(size)}" for what, size in self.needs if size)
        return f"{parts}; {text(self.chunk)} at a time for gradients; {text(self.budget)} allowed ({self.stated})"


def plan(
    given: str | None,
    device: torch.device,
    held: int,
    needs: Sequence[tuple[str, int]],
    chunk: int | None = None,
    stack: int = 1,
) -> Memory:
    """What a run may use, and how much of it at a time for the gradients of single examples.

    The chunk is the same wherever there is enough: sums of floating-point numbers round by how they are cut. Where
    there is less, it is the largest power of two that fits.

    Args:
        given: ``runtime.memory_budget``; None for a share of what is available.
        held: bytes of ``needs`` that are held already.
        chunk: what another process has decided on; None to decide here.
        stack: silos advanced together.

    Raises:
        ConfigError: the needs alone are too much.
        MemoryShortError: the chunk that was decided on is.
    """
    free, warning = available(device), ""
    if given is None:
        budget, stated = int(SHARE * free) + held, f"{SHARE:.0%} of the {text(free)} available, and what records take"
    else:
        budget, stated = parse(given), f"runtime.memory_budget={given!r}"
        if budget > free + held:
            warning = f"{stated} is more than the {text(free + held)} that this process can have"
    left = budget - sum(size for _, size in needs)
    if chunk is not None and left < chunk:
        public = f"memory: {device} has no room for {text(chunk)} of gradients at a time beside records and states"
        raise MemoryShortError(
            f"{public}: {text(max(0, left))} are left of the {text(budget)} allowed ({stated})", public
        )
    if left < LEAST_CHUNK:
        parts = ", ".join(f"{what} {text(size)}" for what, size in needs if size)
        raise ConfigError(
            f"memory: this run needs {text(sum(size for _, size in needs))} ({parts}) and "
            f"{text(LEAST_CHUNK)} or more for gradients on {device}, where {text(max(0, budget))} are allowed "
            f"({stated}). Raise runtime.memory_budget if there is more; else {advice(stack)}use a smaller model, or "
            "more machines (mpirun)."
        )
    if chunk is None:
        chunk = min(CHUNK.get(device.type, CHUNK["cuda"]), 2 ** (left.bit_length() - 1))
    return Memory(budget, stated, tuple(needs), chunk, warning)


def advice(stack: int) -> str:
    """What a configuration can do about silos that need too much together."""
    return "lower runtime.stack or silo_rate, " if stack > 1 else ""


def fixed_needs(
    algorithm: Algorithm,
    setting: Setting,
    model: torch.Tensor,
    silos: Iterable[Records],
    *,
    stack: int,
    batch_size: int,
) -> list[tuple[str, int]]:
    """(what, bytes) that a process holds: the records of its ``silos``, states of d numbers each, a stack at work.

    The algorithm's vectors are counted by asking it for a model of one number.
    """
    one, size, held = model[:1], model.numel() * model.element_size(), list(silos)
    server = algorithm.init_server(one, setting)
    states = len(algorithm.init_silos(one, 1))
    sent = len(algorithm.download(server))
    here = min(len(held), setting.num_participants)
    row = max((records.features[0].numel() * records.features.element_size() for records in held), default=0)
    # An upload, the local model, its gradient, noise in float64.
    work = min(stack, max(1, here)) * (sent + 6) if held else sent
    own = ENGINE_VECTORS if held else 0
    trial = max(0, TRIAL_VECTORS - 3 * len(server) - work - own)  # before the rounds, so that theirs are not there yet
    vectors = {
        "the model": 2,  # as it was made, and as one vector
        "states of silos": (len(held) + here) * states,  # and the new ones, until the round counts
        "the server's vectors": 3 * len(server),
        "silos at work": work,
        "the engine's vectors": own,
        "trying the engine": trial,
    }
    return [
        ("records", sum(bytes_of(records) for records in held)),
        *((what, count * size) for what, count in vectors.items()),
        ("gaps between vectors", int(GAPS * sum(vectors.values()) * size)),
        ("a batch", batch_size * row if held else 0),
        ("sums of blocks", 12 * AT_ONCE.get(model.device.type, AT_ONCE["cuda"]) if held else 0),  # float32, and float64
    ]


def of_lockstep(setting: Setting, silos: Iterable[Records], *, stack: int, batch_size: int) -> list[tuple[str, int]]:
    """(what, bytes) more where silos of a stack are answered together: their records in one place, beside those that
    were loaded, and the batches of all of them at a time, each as long as the longest.

    Args:
        batch_size: of the largest silo; expected, where it varies: the longest has up to 6 standard deviations more.
    """
    held = list(silos)
    most = max(map(len, held), default=0)
    row = max((records.features[0].numel() * records.features.element_size() for records in held), default=0)
    longest = filled(min(most, batch_size + math.ceil(6 * math.sqrt(batch_size))))
    together = min(stack, len(held), setting.num_participants)
    return [
        ("records in one place", sum(bytes_of(records) for records in held)),
        ("batches of a stack", together * longest * row),
    ]


def of_graph(
    setting: Setting, model: torch.Tensor, lockstep: Sequence[tuple[str, int]], num_silos: int, *, stack: int
) -> int:
    """Bytes that a recorded step keeps for itself: batches of a stack (`of_lockstep` has them), what is made of them,
    and each silo's parameters and sum. Of one; a graph of another shape needs as much again."""
    together = min(stack, num_silos, setting.num_participants)
    size = model.numel() * model.element_size()
    return dict(lockstep)["batches of a stack"] + CHUNK["cuda"] + 3 * together * size if together else 0


def of_device_noise(setting: Setting, model: torch.Tensor, num_silos: int, *, stack: int) -> int:
    """Bytes of the noise of these steps, of that of the next while it is rounded, and of what it is made of."""
    together = min(stack, num_silos, setting.num_participants)
    pairs = min(MOST_PAIRS_AT_ONCE, together * model.numel())
    return 4 * max(AHEAD_BYTES, together * model.numel() * 8) + 16 * 8 * pairs if together else 0


def bytes_of(records: Records) -> int:
    return sum(value.numel() * value.element_size() for value in (records.features, records.labels))


def available(device: torch.device) -> int:
    """Bytes that a process could still get: on the device, or of the machine and of its control group."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    found = [int(line.split()[1]) * 1024 for line in _lines("/proc/meminfo") if line.startswith("MemAvailable")]
    group = Path("/sys/fs/cgroup")
    for most, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        limit, now = (next(iter(_lines(group / name)), "") for name in (most, used))
        if limit.isdigit() and now.isdigit():
            found.append(max(0, int(limit) - int(now) + _reclaimable(group / Path(most).parent / "memory.stat")))
    return min(found, default=4 * 2**30)


def _reclaimable(path: Path) -> int:
    """Bytes of files in a control group's memory that the kernel would give up."""
    known = dict(line.split()[:2] for line in _lines(path))
    return int(known.get("inactive_file", 0))


def _lines(path: str | Path) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def parse(given: str) -> int:
    """Bytes, of "8GB", "512 MiB" or a plain number; the configuration has checked the form."""
    found = re.fullmatch(SIZE, given, re.IGNORECASE)
    assert found is not None, given
    return int(float(found[1]) * _UNITS[found[2].lower()])


def text(size: float) -> str:
    """E.g. "1.5 GiB"."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{int(size)} B"


def is_device_failure(error: BaseException) -> bool:
    """Whether an error says that a GPU, or its driver, failed: there, the next thing that a process asks fails, too."""
    text = str(next(iter(error.args), ""))
    return isinstance(error, RuntimeError) and text.startswith("CUDA error") and not is_short(error)


def is_short(error: BaseException) -> bool:
    """Whether an error says that there is no memory left; on a CPU torch has no class of its own for it."""
    told = ("can't allocate memory", "not enough memory", "CUDA error: out of memory")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in told)
    )
