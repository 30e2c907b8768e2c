"""What every engine must fulfil, built-in or not: no record moves a sum by more than is charged."""

from __future__ import annotations

import math
import unittest
from dataclasses import replace
from typing import Any, ClassVar

import torch

from dpfl_plugin.core.grid import SUM_SLACK
from dpfl_plugin.gradients import losses
from dpfl_plugin.gradients.base import Engine
from dpfl_plugin.gradients.worst import farthest, model, moved, records_of
from dpfl_plugin.testing.contract_monitor import ContractError

__tracebackhide__ = True


class EngineContract:
    """The contract of an engine: derive a class whose name begins with Test, and pytest runs each check.

        class TestMine(EngineContract):
            engine = MyEngine

    Attributes:
        engine: what is registered; it is made as (model, loss, chunk_bytes).
    """

    engine: ClassVar[Any] = None
    chunk_bytes: ClassVar[int] = 2**26

    def made(self) -> Engine:
        reason = self.engine.unsupported(model(), losses.logistic)
        if reason is not None:
            raise unittest.SkipTest(
                f"{self.engine.name} does not compute a Linear layer with loss: logistic ({reason})"
            )
        engine: Engine = self.engine(model(), losses.logistic, self.chunk_bytes)
        return engine

    def test_no_record_moves_a_sum_by_more_than_is_charged(self) -> None:
        """See `Engine.clipped_sum`: worst cases for rounding, of records that are replaced or count as zero."""
        engine = self.made()
        far, how = farthest(engine)
        if not far <= 1 + SUM_SLACK:
            raise ContractError(
                f"where {how}, the sum moves by {far:.6f} of the sensitivity; at most {1 + SUM_SLACK:.6f} is charged. "
                "Add up blocks of few records each, by their places, and the blocks in float64: see "
                "dpfl_plugin/gradients/blocks.py."
            )

    def test_a_record_that_is_not_usable_counts_as_zero_at_its_place(self) -> None:
        """Whatever its placeholder is, to the bit."""
        engine, gradients = self.made(), torch.linspace(-0.9, 0.9, 300, dtype=torch.float64)
        usable = torch.arange(300) != 150
        one, other = (replace(records_of(gradients), usable=usable) for _ in range(2))
        other.features[150] = 7.0
        if moved(engine, one, other, 1.0) != 0:
            raise ContractError("what stands in for a record that is not usable moves the sum: see `Records.usable`.")

    def test_a_record_that_is_not_finite_counts_as_zero_at_its_place(self) -> None:
        """It adds nothing, and no other record adds anything else."""
        engine, gradients = self.made(), torch.linspace(-0.9, 0.9, 300, dtype=torch.float64)
        for place in (0, 150, 299):
            without, zero = records_of(gradients), records_of(gradients)
            without.features[place], zero.features[place] = math.nan, 0.0
            far = moved(engine, without, zero, 1.0)
            if not far <= SUM_SLACK:
                raise ContractError(
                    f"a record of NaN and one of zeros are {far:g} apart, at place {place} of 300: it has to count as "
                    "zero there, and all others stay where they are."
                )
