"""The algorithms, a class each: ``dpfl.algorithms.Scaffold(local_steps=20, local_lr=1.0)``.

They are loaded when they are first used: an account needs `base` alone, and no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from dpfl_plugin.algorithms.accelerated import AcceleratedMBSGD as AcceleratedMBSGD
    from dpfl_plugin.algorithms.accelerated import MultistageMBSGD as MultistageMBSGD
    from dpfl_plugin.algorithms.fedavg import FedAvg as FedAvg
    from dpfl_plugin.algorithms.fedavg import FedSGD as FedSGD
    from dpfl_plugin.algorithms.fedavg_sync import FedAvgSync as FedAvgSync
    from dpfl_plugin.algorithms.fedprox import FedProx as FedProx
    from dpfl_plugin.algorithms.localized import LocalizedMBSGD as LocalizedMBSGD
    from dpfl_plugin.algorithms.localized import LocalizedSubgradient as LocalizedSubgradient
    from dpfl_plugin.algorithms.mb_sgd import MBSGD as MBSGD
    from dpfl_plugin.algorithms.mb_sgd import NoisySubgradient as NoisySubgradient
    from dpfl_plugin.algorithms.mr_mtl import MRMTL as MRMTL
    from dpfl_plugin.algorithms.mr_mtl import Local as Local
    from dpfl_plugin.algorithms.scaffnew import ScaffNew as ScaffNew
    from dpfl_plugin.algorithms.scaffold import Scaffold as Scaffold
    from dpfl_plugin.algorithms.scaffold import ScaffoldWarm as ScaffoldWarm
    from dpfl_plugin.algorithms.smoothed import ConvolutionMBSGD as ConvolutionMBSGD
    from dpfl_plugin.algorithms.smoothed import LocalizedConvolution as LocalizedConvolution
    from dpfl_plugin.algorithms.smoothed import LocalizedNesterov as LocalizedNesterov

_MODULES: Final = {
    "AcceleratedMBSGD": "accelerated",
    "ConvolutionMBSGD": "smoothed",
    "FedAvg": "fedavg",
    "FedAvgSync": "fedavg_sync",
    "FedProx": "fedprox",
    "FedSGD": "fedavg",
    "Local": "mr_mtl",
    "LocalizedConvolution": "smoothed",
    "LocalizedMBSGD": "localized",
    "LocalizedNesterov": "smoothed",
    "LocalizedSubgradient": "localized",
    "MBSGD": "mb_sgd",
    "MRMTL": "mr_mtl",
    "MultistageMBSGD": "accelerated",
    "NoisySubgradient": "mb_sgd",
    "ScaffNew": "scaffnew",
    "Scaffold": "scaffold",
    "ScaffoldWarm": "scaffold",
}

__all__ = list(_MODULES)


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:  # a type checker shall know the names above, and no others

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
