"""What a run ran on, and whether another run of it would give the same bits."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import json
import os
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy
import torch

import dpfl_plugin
from dpfl_plugin import loaded
from dpfl_plugin.gradients import fused

PACKAGES = ("torch", "numpy", "numba", "scipy", "dp-accounting", "opacus", "scikit-learn", "safetensors", "pydantic")


def describe() -> dict[str, Any]:
    """Versions and machine, for `environment.json`."""
    return {
        "dpfl_plugin": dpfl_plugin.__version__,
        "python": sys.version.split()[0],
        "packages": {name: _version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cpus": os.cpu_count(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }


def arithmetic(device: str, threads: int, plugins: Sequence[object] = (), kernels: str | None = None) -> dict[str, Any]:
    """What decides the bits of a result: two runs that agree in all of it, and repeat, agree in their bits.

    Args:
        plugins: the algorithm, model and so on in use; their source files count.
        kernels: what compiled the loops that the engine uses; None where it uses none.
    """
    return {
        "repeats": not device.startswith("cuda"),  # kernels on a GPU may add up in another order each time
        "dpfl_plugin": dpfl_plugin.__version__,
        "source": _source_sha256(plugins),
        **_machine(device),
        "kernels": kernels,
        "threads": threads,
    }


def machine(device: str) -> dict[str, Any]:
    """The part of `arithmetic` that a process brings along, whatever its engine will be."""
    return {**_machine(device), "kernels": None if device.startswith("cuda") else fused.version()}


def _machine(device: str) -> dict[str, Any]:
    return {
        "processor": _processor(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "machine": platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else device,
    }


def elsewhere(here: Mapping[str, Any], machines: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """What other processes of a run bring along, where that is not what this one does.

    Compiled loops count where the engine uses them.
    """
    if here["kernels"] is None:
        machines = [{key: value for key, value in found.items() if key != "kernels"} for found in machines]
    others = {json.dumps(dict(found), sort_keys=True) for found in machines}
    differing = sorted(text for text in others if any(here[key] != value for key, value in json.loads(text).items()))
    if not differing:
        return {}
    found = [json.loads(text) for text in differing]
    return {"elsewhere": found, "repeats": here["repeats"] and all(item["device"] == "cpu" for item in found)}


@functools.cache
def package_sha256() -> str:
    """Digest of this package's source files, as they were when this process asked first; see `package_changed`."""
    digest = hashlib.sha256()
    for content in sorted(path.read_bytes() for path in _package_files()):
        digest.update(hashlib.sha256(content).digest())
    return digest.hexdigest()


def package_changed() -> bool:
    """Whether the package's files may not be those that this process has loaded, or will load: one is newer than it."""
    return loaded.changed_since_beginning(path.stat().st_ctime for path in _package_files())


def _package_files() -> list[Path]:
    return [path for path in Path(dpfl_plugin.__file__).parent.rglob("*.py") if path.is_file()]


def _source_sha256(plugins: Sequence[object]) -> str:
    """Digest of the package's source files and of those that define the plugins."""
    files: set[Path] = set()
    for plugin in plugins:
        module = inspect.getmodule(plugin if inspect.isfunction(plugin) else type(plugin))
        if module is not None and getattr(module, "__file__", None):
            files.add(Path(str(module.__file__)))
    digest = hashlib.sha256(package_sha256().encode())
    for content in sorted(path.read_bytes() for path in files if path.is_file()):
        digest.update(hashlib.sha256(content).digest())
    return digest.hexdigest()


def _processor() -> str:
    """The processor's model: libraries choose their kernels by it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "CPU part")):
                return line.partition(":")[2].strip()
    return platform.processor()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
