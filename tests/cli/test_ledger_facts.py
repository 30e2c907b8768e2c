"""What a shared ledger says of its runs, and how they are named."""

from __future__ import annotations

import re
from pathlib import Path

from dpfl_plugin.adapters.silo import _fresh_draw
from dpfl_plugin.privacy.ledger import Ledger
from tests.cli.command import dpfl, write

# Silos of other sizes, so that batches of one size are drawn at other rates.
SKEWED = {
    "rounds": 1,
    "data": {
        "dataset": {"name": "synthetic", "num_features": 4, "num_classes": 3, "records_per_silo": 40},
        "partition": {"name": "quantity_skew", "alpha": 1.0},
    },
    "privacy": {"record_rate": None, "batch_size": 4},
}


def test_names_of_noise_from_the_operating_system_do_not_come_again(tmp_path: Path) -> None:
    """Two releases of one name count as one. Of a byte, names repeat after some twenty; of 48 bits, two of a million
    names are the same with probability .002.
    """
    path = write(tmp_path, {"rounds": 1, "privacy": {"randomness": "fresh"}})
    found: set[str] = set()
    for out in ("one", "two"):
        assert dpfl("run", path, "--out", tmp_path / out).code == 0
        (ledger,) = (tmp_path / out).rglob("ledger.jsonl")
        found |= {charge.noise_id.partition(".")[0] for charge in Ledger.open(ledger, append=False)}
    assert len(found) == 2 and all(re.fullmatch("[0-9a-f]{12,}", name) for name in found), found
    assert len({_fresh_draw(0).noise_id for _ in range(3000)}) == 3000
