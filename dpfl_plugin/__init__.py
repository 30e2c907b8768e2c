"""Differentially private federated learning with drift control.

The names below are the public Python interface (docs/python.md). Each is loaded when it is first used, so that
``import dpfl_plugin`` and ``dpfl --help`` stay fast: torch alone takes seconds.
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
    from dpfl_plugin.api.account import account as account
    from dpfl_plugin.api.attack import attack as attack
    from dpfl_plugin.api.audit import audit as audit
    from dpfl_plugin.api.check import check as check
    from dpfl_plugin.api.comparison import compare as compare
    from dpfl_plugin.api.engines import engines as engines
    from dpfl_plugin.api.experiment import Experiment as Experiment
    from dpfl_plugin.api.experiment import load as load
    from dpfl_plugin.api.export import export as export
    from dpfl_plugin.api.federation import Federation as Federation
    from dpfl_plugin.api.ledgers import Ledger as Ledger
    from dpfl_plugin.api.plan import plan as plan
    from dpfl_plugin.api.plugins import plugins as plugins
    from dpfl_plugin.api.predict import predict as predict
    from dpfl_plugin.api.privacy import Privacy as Privacy
    from dpfl_plugin.api.private_oracle import PrivateOracle as PrivateOracle
    from dpfl_plugin.api.projects import init as init
    from dpfl_plugin.api.runs import Run as Run
    from dpfl_plugin.api.statement import statement as statement
    from dpfl_plugin.api.tables import check_tables as check_tables
    from dpfl_plugin.api.tables import draft_schema as draft_schema
    from dpfl_plugin.api.tables import read_tables as read_tables
    from dpfl_plugin.api.training import resume as resume
    from dpfl_plugin.api.training import train as train
    from dpfl_plugin.api.tuning import Tuning as Tuning
    from dpfl_plugin.api.tuning import plan_tuning as plan_tuning
    from dpfl_plugin.api.tuning import tune as tune
    from dpfl_plugin.callbacks import Callback as Callback
    from dpfl_plugin.callbacks import MLflow as MLflow
    from dpfl_plugin.callbacks import TensorBoard as TensorBoard
    from dpfl_plugin.callbacks import WandB as WandB
    from dpfl_plugin.models.fields import Field as Field
    from dpfl_plugin.models.fields import Fields as Fields
    from dpfl_plugin.models.fields import FieldsModel as FieldsModel
    from dpfl_plugin.owners.lifetime import limits as limits
    from dpfl_plugin.privacy.epsilon import calibrate as calibrate
    from dpfl_plugin.privacy.epsilon import epsilon as epsilon
    from dpfl_plugin.reports.report import report as report
    from dpfl_plugin.sweeps.sweep import sweep as sweep

__version__ = "0.1.0"

_PUBLIC: Final = {
    "AcceleratedMBSGD": "dpfl_plugin.algorithms.accelerated",
    "account": "dpfl_plugin.api.account",
    "attack": "dpfl_plugin.api.attack",
    "audit": "dpfl_plugin.api.audit",
    "calibrate": "dpfl_plugin.privacy.epsilon",
    "Callback": "dpfl_plugin.callbacks",
    "check": "dpfl_plugin.api.check",
    "check_tables": "dpfl_plugin.api.tables",
    "compare": "dpfl_plugin.api.comparison",
    "ConvolutionMBSGD": "dpfl_plugin.algorithms.smoothed",
    "draft_schema": "dpfl_plugin.api.tables",
    "engines": "dpfl_plugin.api.engines",
    "epsilon": "dpfl_plugin.privacy.epsilon",
    "Experiment": "dpfl_plugin.api.experiment",
    "export": "dpfl_plugin.api.export",
    "FedAvg": "dpfl_plugin.algorithms.fedavg",
    "FedAvgSync": "dpfl_plugin.algorithms.fedavg_sync",
    "Federation": "dpfl_plugin.api.federation",
    "FedProx": "dpfl_plugin.algorithms.fedprox",
    "FedSGD": "dpfl_plugin.algorithms.fedavg",
    "Field": "dpfl_plugin.models.fields",
    "Fields": "dpfl_plugin.models.fields",
    "FieldsModel": "dpfl_plugin.models.fields",
    "init": "dpfl_plugin.api.projects",
    "Ledger": "dpfl_plugin.api.ledgers",
    "limits": "dpfl_plugin.owners.lifetime",
    "load": "dpfl_plugin.api.experiment",
    "Local": "dpfl_plugin.algorithms.mr_mtl",
    "LocalizedConvolution": "dpfl_plugin.algorithms.smoothed",
    "LocalizedMBSGD": "dpfl_plugin.algorithms.localized",
    "LocalizedNesterov": "dpfl_plugin.algorithms.smoothed",
    "LocalizedSubgradient": "dpfl_plugin.algorithms.localized",
    "MBSGD": "dpfl_plugin.algorithms.mb_sgd",
    "MLflow": "dpfl_plugin.callbacks",
    "MRMTL": "dpfl_plugin.algorithms.mr_mtl",
    "MultistageMBSGD": "dpfl_plugin.algorithms.accelerated",
    "NoisySubgradient": "dpfl_plugin.algorithms.mb_sgd",
    "plan": "dpfl_plugin.api.plan",
    "plan_tuning": "dpfl_plugin.api.tuning",
    "plugins": "dpfl_plugin.api.plugins",
    "predict": "dpfl_plugin.api.predict",
    "Privacy": "dpfl_plugin.api.privacy",
    "PrivateOracle": "dpfl_plugin.api.private_oracle",
    "read_tables": "dpfl_plugin.api.tables",
    "resume": "dpfl_plugin.api.training",
    "Run": "dpfl_plugin.api.runs",
    "ScaffNew": "dpfl_plugin.algorithms.scaffnew",
    "Scaffold": "dpfl_plugin.algorithms.scaffold",
    "ScaffoldWarm": "dpfl_plugin.algorithms.scaffold",
    "statement": "dpfl_plugin.api.statement",
    "sweep": "dpfl_plugin.sweeps.sweep",
    "TensorBoard": "dpfl_plugin.callbacks",
    "train": "dpfl_plugin.api.training",
    "tune": "dpfl_plugin.api.tuning",
    "Tuning": "dpfl_plugin.api.tuning",
    "WandB": "dpfl_plugin.callbacks",
    "report": "dpfl_plugin.reports.report",
}
"""Public name: the module that has it."""

__all__ = ["__version__", *sorted(_PUBLIC)]


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})


if not TYPE_CHECKING:  # a type checker shall know the names above, and no others

    def __getattr__(name: str) -> Any:
        if name not in _PUBLIC:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(_PUBLIC[name]), name)
        globals()[name] = found
        return found
