"""Being told how a run goes: `Callback`, and the trackers that are callbacks; see docs/callbacks.md."""

from dpfl_plugin.callbacks.base import Callback, RoundInfo, RunInfo, Stop
from dpfl_plugin.callbacks.mlflow import MLflow
from dpfl_plugin.callbacks.tensorboard import TensorBoard
from dpfl_plugin.callbacks.tracker import Tracker
from dpfl_plugin.callbacks.wandb import WandB

__all__ = ["Callback", "MLflow", "RoundInfo", "RunInfo", "Stop", "TensorBoard", "Tracker", "WandB"]
