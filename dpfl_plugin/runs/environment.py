"""What a run runs on: versions, machine, this package's source, and users' code; and what of it changed since."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import os
import platform
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

import dpfl_plugin
from dpfl_plugin import own_folders
from dpfl_plugin.config.named_code import named_code
from dpfl_plugin.config.schema import Config
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.late import torch
from dpfl_plugin.registry import module_of
from dpfl_plugin.runs.folder import RunFolder, read_object

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
    from dpfl_plugin.gradients import fused

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


def named_modules(config: Config) -> list[str]:
    """Modules whose code makes a result; trackers only look on."""
    found = named_code(config).items()
    return sorted({module_of(path) for key, path in found if not key.startswith("trackers[")})


def file_digests(config: Config) -> dict[str, str]:
    """{module: sha256 of its file}, of the modules that have one; objects that a program gave have none."""
    found, names = {}, named_modules(config)
    if names:
        own_folders.search()
    for module in names:
        try:
            spec = importlib.util.find_spec(module)
        except (ImportError, ValueError, AttributeError):  # told when the plugin is loaded
            continue
        if spec is not None and spec.origin is not None and Path(spec.origin).is_file():
            found[module] = hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()
    return found


def changed(now: Mapping[str, str], then: Mapping[str, str]) -> list[str]:
    """The modules whose file is another one; a file that is gone cannot be compared."""
    return [module for module, digest in sorted(then.items()) if now.get(module, digest) != digest]


class OtherCodeError(ConfigError):
    """A result was made with other code than there is now; the message names what changed."""


def check_shown(folder: RunFolder, config: Config) -> list[str]:
    """Check that a finished run's result is that of the files that its configuration names; other changes, in words.

    Raises:
        OtherCodeError: such a file is another one by now.
    """
    made_by = (read_object(folder.result) or {}).get("code") or {}
    others = changed(file_digests(config), made_by)
    if others:
        raise OtherCodeError(
            f"{folder.path} holds the result of this configuration made with other code: {', '.join(others)} has "
            "changed since. Use another out for the new code, or put the old one back to see its result."
        )
    then, now = read_object(folder.environment) or {}, describe()
    changes = [
        f"{name} {old} -> {now['packages'].get(name)}"
        for name, old in (then.get("packages") or {}).items()
        if old != now["packages"].get(name)
    ]
    if then.get("package_sha256", now["package_sha256"]) != now["package_sha256"]:
        changes.insert(0, "dpfl_plugin's own code")
    if not changes:
        return []
    return [f"changed since this result was made: {', '.join(changes)}. To make it again, use another out folder"]
