"""Rounds of a platform's silos without the platform: as `dpfl run` has them in one process, with charges on the disk.

The same records, model and settings; what a platform's round takes beyond this is that of the platform and its adapter.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from dpfl_plugin.adapters import agree
from dpfl_plugin.adapters.records import silo_of
from dpfl_plugin.core.average import WeightedSum
from dpfl_plugin.data.base import Holding, Survey, digest
from dpfl_plugin.federation.planning import Planner
from dpfl_plugin.oracle import Draw
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.runs.build import build


def run(settings: Mapping[str, Any], model: nn.Module, records: Mapping[int, Any], stamp: Callable[[], None]) -> None:
    """All rounds; ``stamp`` is called when one begins.

    Args:
        settings: what the platform's settings say of this package. records: loaders by silo id.
    """
    values = {key: value for key, value in settings.items() if key != "folder"}
    agreement = agree(values, num_silos=len(records), model=model)
    silos = {i: silo_of(one, model) for i, one in records.items()}
    survey = Survey(
        num_classes=0,
        feature_shape=next(iter(silos.values())).train_x.shape[1:],
        caveats=(),
        num_records=tuple(len(silo.train_y) for silo in silos.values()),
        num_test_records=(0,) * len(silos),
        digests=tuple(digest(silo) for silo in silos.values()),
    )
    holding = Holding(survey, silos, digests=dict(zip(silos, survey.digests, strict=True)))
    parts = build(agreement.config, Path(), hold=lambda config, base: holding, module=copy.deepcopy(model))
    vectors = parts.algorithm.init_server(parts.model, parts.setting)
    planner = Planner(parts.algorithm, parts.setting, (1 / len(silos),) * len(silos), agreement.config.public_seed)
    with tempfile.TemporaryDirectory() as folder, Ledger(Path(folder) / "ledger.jsonl") as ledger:
        for round in range(agreement.config.rounds or 0):
            stamp()
            plan = planner.plan(vectors, round)
            assert plan is not None
            down, total = parts.algorithm.download(vectors), WeightedSum()
            draw = Draw.fresh(round, "run")
            for silo, weight in zip(plan.participants, plan.weights, strict=True):
                up, charges = parts.host.run([silo], down, plan, draw)
                ledger.append(charges)
                ledger.sync()
                total.add(up, [weight])
            parts.host.commit()
            vectors = parts.algorithm.aggregate(vectors, total.total, plan)
