"""What a run ran on: versions, machine, and this package's own source."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

import dpfl_plugin
from dpfl_plugin.gradients import fused

PACKAGES = ("torch", "numpy", "numba", "scipy", "dp-accounting", "opacus", "scikit-learn", "safetensors", "pydantic")


def describe() -> dict[str, Any]:
    """Versions and machine, for `environment.json`."""
    return {
        "dpfl_plugin": dpfl_plugin.__version__,
        "package_sha256": package_sha256(),
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
