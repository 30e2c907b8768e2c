"""What a run ran on: versions, machine, and this package's own source."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import sys
from collections.abc import Collection
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

import dpfl_plugin
from dpfl_plugin.gradients import fused

HAND_OVER: Final = frozenset(
    {"__main__", "cli", "testing", "api", "attacks", "published", "report", "sweeps", "theorems", "tuning"}
)
"""Rooms that no module of a run may import (pyproject.toml, the layers): they hand a configuration over, and read."""
MODULE_DIGITS: Final = 16
PACKAGES = ("torch", "numpy", "numba", "scipy", "dp-accounting", "opacus", "scikit-learn", "safetensors", "pydantic")


def describe() -> dict[str, Any]:
    """Versions and machine, for `environment.json`."""
    return {
        "dpfl_plugin": dpfl_plugin.__version__,
        "package_sha256": package_sha256(),
        "modules": modules(),
        "python": sys.version.split()[0],
        "packages": {name: _version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cpus": os.cpu_count(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }


def machine(device: str) -> dict[str, Any]:
    """The versions and the processor of a process, for `dpfl doctor`."""
    return {
        "processor": _processor(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": platform.machine(),
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else device,
        "kernels": None if device.startswith("cuda") else fused.version(),
    }


@functools.cache
def package_sha256() -> str:
    """Digest of this package's source files, as they were when this process asked first."""
    digest = hashlib.sha256()
    for content in sorted(path.read_bytes() for path in _package_files()):
        digest.update(hashlib.sha256(content).digest())
    return digest.hexdigest()


def modules(apart: Collection[str] = HAND_OVER) -> dict[str, str]:
    """Digest of the source, by name, of every module of this package that this process has imported so far.

    A run can be made of no other code of the package. While all of them are as they were, a run of the same
    configuration imports these and no others, and computes the same.

    Args:
        apart: rooms, or modules by their name in the package, that are left out.
    """
    found = {}
    for name, module in list(sys.modules.items()):
        if not f"{name}.".startswith("dpfl_plugin."):  # asked first: there are thousands
            continue
        inside, path = name.removeprefix("dpfl_plugin."), getattr(module, "__file__", None)
        if path is None or not path.endswith(".py"):
            continue
        if inside not in apart and inside.partition(".")[0] not in apart:
            found[inside] = module_sha256(inside)
    return dict(sorted(found.items()))


def module_sha256(name: str) -> str:
    """Digest of a module's source, as it was when this process asked first; "" where the package has none such."""
    return _modules_sha256().get(name, "")


@functools.cache
def _modules_sha256() -> dict[str, str]:
    root, found = Path(dpfl_plugin.__file__).parent, {}
    for path in _package_files():
        words = path.relative_to(root.parent).with_suffix("").parts
        name = ".".join(words[:-1] if words[-1] == "__init__" else words).removeprefix("dpfl_plugin.")
        found[name] = hashlib.sha256(path.read_bytes()).hexdigest()[:MODULE_DIGITS]
    return found


def _package_files() -> list[Path]:
    return [path for path in Path(dpfl_plugin.__file__).parent.rglob("*.py") if path.is_file()]


def _processor() -> str:
    """The processor's model: libraries choose their kernels by it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "CPU part")):
                return line.partition(":")[2].strip()
    return platform.processor()


@functools.cache  # each reads a file, and a run asks twice
def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
