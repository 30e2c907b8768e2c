"""What a run ran on, and whether another run of it would give the same bits."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from typing import Any

import numpy
import torch

import dpfl_plugin

PACKAGES = ("torch", "numpy", "scipy", "dp-accounting", "opacus", "scikit-learn", "safetensors", "pydantic")


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


def arithmetic(device: str, threads: int) -> dict[str, Any]:
    """What decides the bits of a result: two runs that agree in all of it agree in their bits."""
    return {
        "dpfl_plugin": dpfl_plugin.__version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "machine": platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else device,
        "threads": threads,
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
