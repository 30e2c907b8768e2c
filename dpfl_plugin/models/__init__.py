"""What models are made with: inputs beyond a row of numbers (docs/models.md), and heads behind a score."""

from dpfl_plugin.models.fields import Field, Fields, FieldsModel
from dpfl_plugin.models.score_heads import BaselineHazards, ScoreHead, Thresholds

__all__ = [
    "BaselineHazards",
    "Field",
    "Fields",
    "FieldsModel",
    "ScoreHead",
    "Thresholds",
]
