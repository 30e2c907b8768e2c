"""What models are made with: inputs that are more than a row of numbers (docs/models.md), and ordinal outcomes."""

from dpfl_plugin.models.fields import Field, Fields, FieldsModel
from dpfl_plugin.models.ordinal import Thresholds

__all__ = [
    "Field",
    "Fields",
    "FieldsModel",
    "Thresholds",
]
