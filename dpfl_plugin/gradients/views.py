"""Gradients of augmented records: the mean over a record's views, clipped once.

Augmentation multiplicity: De, Berrada, Hayes, Smith and Balle 2022, "Unlocking High-Accuracy Differentially Private
Image Classification through Scale", arXiv:2204.13650, sec. 3. An example is the k views of one record, which to an
engine are what the records of a person are (`persons`): the gradient of their mean loss is the mean of their gradients,
and that is what is clipped. So a record moves a sum by what it would move it without views.

Which views there are depends on random bits that no record has a part in, drawn anew at every step, and on the
record's place in the batch. Given these bits a step is that of records without views, and what is proven of each of
them holds of their mixture (the divergences that are accounted are jointly convex).
"""

from __future__ import annotations

import numpy as np

from dpfl_plugin.core.views import Augmentation
from dpfl_plugin.errors import UnsupportedError
from dpfl_plugin.gradients.base import Records


def several(augmentation: Augmentation, batch: Records, rng: np.random.Generator) -> Records:
    """The views of each record of a batch: features (b, k, c, h, w), and its label for each of them, (b, k, ...).

    Raises:
        UnsupportedError: the engine has precomputed something of the records, which is not that of their views.
    """
    _check(batch)
    return _labelled(batch, Records(augmentation.of(batch.features, rng), batch.labels))


def single(batch: Records) -> Records:
    """Each record as its own only view, unchanged: (b, 1, c, h, w)."""
    _check(batch)
    return _labelled(batch, Records(batch.features.unsqueeze(1), batch.labels))


def _check(batch: Records) -> None:
    if batch.constants is not None:
        raise UnsupportedError("augmentation: this engine precomputes numbers of records. Use engine: auto.")


def _labelled(batch: Records, views: Records) -> Records:
    b, k = views.features.shape[:2]
    labels = batch.labels.unsqueeze(1).expand(b, k, *batch.labels.shape[1:])
    return Records(views.features, labels.contiguous(), usable=batch.usable)
