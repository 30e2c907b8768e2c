"""Differentially private federated learning with drift control.

The names below are the public Python interface (docs/python.md). Each is loaded when it is first used, so that
``import dpfl_plugin`` and ``dpfl --help`` stay fast: torch alone takes seconds.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from dpfl_plugin import algorithms as algorithms
    from dpfl_plugin import callbacks as callbacks
    from dpfl_plugin import errors as errors
    from dpfl_plugin import models as models
    from dpfl_plugin.api.account import account as account
    from dpfl_plugin.api.attack import attack as attack
    from dpfl_plugin.api.audit import audit as audit
    from dpfl_plugin.api.check import check as check
    from dpfl_plugin.api.comparison import compare as compare
    from dpfl_plugin.api.describe import describe as describe
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
    from dpfl_plugin.api.sweep import sweep as sweep
    from dpfl_plugin.api.tables import check_tables as check_tables
    from dpfl_plugin.api.tables import draft_schema as draft_schema
    from dpfl_plugin.api.tables import read_tables as read_tables
    from dpfl_plugin.api.training import resume as resume
    from dpfl_plugin.api.training import train as train
    from dpfl_plugin.api.tuning import Tuning as Tuning
    from dpfl_plugin.api.tuning import plan_tuning as plan_tuning
    from dpfl_plugin.api.tuning import tune as tune
    from dpfl_plugin.callbacks import Callback as Callback
    from dpfl_plugin.callbacks import Stop as Stop
    from dpfl_plugin.experiments.reports.report import report as report
    from dpfl_plugin.owners.lifetime import limits as limits
    from dpfl_plugin.privacy.epsilon import calibrate as calibrate
    from dpfl_plugin.privacy.epsilon import epsilon as epsilon

__version__ = "0.1.0"

_PUBLIC: Final = {
    "account": "dpfl_plugin.api.account",
    "attack": "dpfl_plugin.api.attack",
    "audit": "dpfl_plugin.api.audit",
    "calibrate": "dpfl_plugin.privacy.epsilon",
    "Callback": "dpfl_plugin.callbacks",
    "Stop": "dpfl_plugin.callbacks",
    "check": "dpfl_plugin.api.check",
    "check_tables": "dpfl_plugin.api.tables",
    "describe": "dpfl_plugin.api.describe",
    "compare": "dpfl_plugin.api.comparison",
    "draft_schema": "dpfl_plugin.api.tables",
    "engines": "dpfl_plugin.api.engines",
    "epsilon": "dpfl_plugin.privacy.epsilon",
    "Experiment": "dpfl_plugin.api.experiment",
    "export": "dpfl_plugin.api.export",
    "Federation": "dpfl_plugin.api.federation",
    "init": "dpfl_plugin.api.projects",
    "Ledger": "dpfl_plugin.api.ledgers",
    "limits": "dpfl_plugin.owners.lifetime",
    "load": "dpfl_plugin.api.experiment",
    "plan": "dpfl_plugin.api.plan",
    "plan_tuning": "dpfl_plugin.api.tuning",
    "plugins": "dpfl_plugin.api.plugins",
    "predict": "dpfl_plugin.api.predict",
    "Privacy": "dpfl_plugin.api.privacy",
    "PrivateOracle": "dpfl_plugin.api.private_oracle",
    "read_tables": "dpfl_plugin.api.tables",
    "report": "dpfl_plugin.experiments.reports.report",
    "resume": "dpfl_plugin.api.training",
    "Run": "dpfl_plugin.api.runs",
    "statement": "dpfl_plugin.api.statement",
    "sweep": "dpfl_plugin.api.sweep",
    "train": "dpfl_plugin.api.training",
    "tune": "dpfl_plugin.api.tuning",
    "Tuning": "dpfl_plugin.api.tuning",
}
"""Public name: the module that has it."""

_NAMESPACES: Final = ("algorithms", "callbacks", "errors", "models")
_MOVED: Final = {
    "init_project": "init",
    "max_steps": "calibrate",
    "statement_to_sign": "statement",
    "write_report": "report",
    **dict.fromkeys(("MLflow", "TensorBoard", "WandB"), "callbacks."),
    **dict.fromkeys(("Field", "Fields", "FieldsModel"), "models."),
    **dict.fromkeys(
        (
            "AcceleratedMBSGD",
            "ConvolutionMBSGD",
            "FedAvg",
            "FedAvgSync",
            "FedProx",
            "FedSGD",
            "Local",
            "LocalizedConvolution",
            "LocalizedMBSGD",
            "LocalizedNesterov",
            "LocalizedSubgradient",
            "MBSGD",
            "MRMTL",
            "MultistageMBSGD",
            "NoisySubgradient",
            "ScaffNew",
            "Scaffold",
            "ScaffoldWarm",
        ),
        "algorithms.",
    ),
}
"""Names of version 0.1: their new names, or the namespaces in which they are."""

__all__ = ["__version__", *sorted([*_PUBLIC, *_NAMESPACES])]


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:  # a type checker shall know the names above, and no others

    def __getattr__(name: str) -> Any:
        if name in _PUBLIC:
            found = getattr(importlib.import_module(_PUBLIC[name]), name)
            globals()[name] = found
            return found
        if name in _NAMESPACES:
            return importlib.import_module(f"{__name__}.{name}")
        new = _MOVED.get(name, "")
        hint = f": it is dpfl.{new}{name if new.endswith('.') else ''} now" if new else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
