"""What a run ran on, and whether another run of it would give the same bits."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import json
import os
import platform
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

import dpfl_plugin
from dpfl_plugin import loaded
from dpfl_plugin.gradients import fused
from dpfl_plugin.gradients.precision import products

# Variables by which libraries choose their kernels, and so how sums round.
SWITCHES: Final = (
    *("MKL_", "NUMBA_", "OMP_", "KMP_", "GOMP_", "OPENBLAS_", "BLIS_", "ONEDNN_", "DNNL_", "ATEN_", "TORCH_"),
    *("CUBLAS_", "NPY_", "PYTORCH_JIT", "NVIDIA_TF32_OVERRIDE", "GLIBC_TUNABLES"),
)
# Of these, what only places threads, counts them (`threads` says how many there are), keeps files, waits or talks: it
# differs between launchers, ranks and sweeps, and leaves all bits as they are.
HARMLESS: Final = re.compile(
    r"\w+_NUM_THREADS|OMP_PROC_BIND|OMP_PLACES|OMP_WAIT_POLICY|(OMP|GOMP|KMP)_STACKSIZE"
    r"|OMP_(DISPLAY|AFFINITY)_\w+|GOMP_(CPU_AFFINITY|SPINCOUNT|DEBUG|RTEMS_THREAD_POOLS)"
    r"|KMP_(AFFINITY|HW_SUBSET|BLOCKTIME|SETTINGS|WARNINGS|VERSION|DUPLICATE_LIB_OK|INIT_AT_FORK|LIBRARY)"
    r"|(MKL|OPENBLAS)_VERBOSE|(DNNL|ONEDNN)_(VERBOSE\w*|JIT_DUMP|JIT_PROFILE)"
    r"|NUMBA_(CACHE_DIR|CACHE_LOCATOR_CLASSES|WARNINGS|SHOW_HELP|COLOR_SCHEME|DEBUG_CACHE|DISABLE_PERFORMANCE_WARNINGS"
    r"|DISABLE_ERROR_MESSAGE_HIGHLIGHTING|FULL_TRACEBACKS|DEVELOPER_MODE)"
    r"|TORCH_(HOME|EXTENSIONS_DIR|LOGS\w*|TRACE|SHOW_CPP_STACKTRACES|CPP_LOG_LEVEL|DISTRIBUTED_DEBUG|NCCL_\w+)"
)
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
        "flags": flags(),
        "kernels": kernels,
        "threads": threads,
    }


def machine(device: str) -> dict[str, Any]:
    """The part of `arithmetic` that a process brings along, whatever its engine will be."""
    return {**_machine(device), "kernels": None if device.startswith("cuda") else fused.version()}


def switches(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables of the environment by which libraries may choose other kernels."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if name.startswith(SWITCHES) and not HARMLESS.fullmatch(name)
    }


def flags() -> dict[str, Any]:
    """What torch was told in this process, by users' code say, and may decide bits."""
    backends, smallest, multiplied = torch.backends, np.float32(2.0**-149), products()
    found = {
        "default_dtype": str(torch.get_default_dtype()),
        "matmul_precision": multiplied.pop("torch.get_float32_matmul_precision()"),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        # Nothing tells whether the processor takes the smallest numbers for zero; so it is tried, in this thread.
        "flush_denormal": bool(torch.tensor(smallest).mul(1.0).view(torch.int32) == 0),
        "attention": [backends.mha.get_fastpath_enabled(), backends.cuda.flash_sdp_enabled()],
    }
    for name in ("mkldnn", "nnpack", "opt_einsum", "quantized"):
        backend = getattr(backends, name, None)
        for option in ("enabled", "deterministic", "allow_tf32", "strategy", "engine"):
            if isinstance(value := getattr(backend, option, None), bool | str):
                found[f"{name}.{option}"] = value
    for setting, said in multiplied.items():
        name = setting.removeprefix("torch.backends").removeprefix(".").removesuffix("fp32_precision").removesuffix(".")
        found[f"{name}.precision"] = "ieee" if said == "none" else said  # nobody said, or highest
    if hooks := _global_hooks():  # of most runs there are none, and their names do not change
        found["global_hooks"] = hooks
    return found


def _global_hooks() -> list[str]:
    """What torch calls at every module of this process besides the module itself."""
    return [
        f"{name}: {getattr(hook, '__module__', '')}.{getattr(hook, '__qualname__', type(hook).__qualname__)}"
        for name, hooks in sorted(vars(torch.nn.modules.module).items())
        if name.startswith("_global_") and isinstance(hooks, dict)
        for hook in hooks.values()
    ]


def _machine(device: str) -> dict[str, Any]:
    return {
        "processor": _processor(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "switches": switches(),
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


def modules(apart: Collection[str] = HAND_OVER) -> dict[str, str]:
    """Digest of the source, by name, of every module of this package that this process has imported so far.

    A run can be made of no other code of the package. While all of them are as they were, a run of the same
    configuration imports these and no others, and computes the same, but for the noise: its name is `package_sha256`'s.

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


@functools.cache  # each reads a file, and a run asks twice
def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
