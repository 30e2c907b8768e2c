"""All that a silo of a platform sends: fields that are named here, and vectors that its ledger has charged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dpfl_plugin.adapters import Message
from tests.adapters.federation import SCAFFOLD, block, loop

ALWAYS = {"dpfl", "run", "round", "tag", "silo", "status"}
# epsilon and reason are functions of what the silo released, the others of what the server sent; model is the digest
# of the layers that the silo built.
MORE = {"upload": {"epsilon", "delta"}, "spent": {"reason"}, "failed": {"model"}}


@pytest.mark.parametrize("privacy", [{}, {"epsilon": 3.0}])
def test_every_byte_of_an_upload_is_explained(tmp_path: Path, privacy: dict[str, Any]) -> None:
    rng = torch.Generator().manual_seed(1)
    records = {
        silo: (torch.randn(30, 4, generator=rng), torch.randint(0, 3, (30,), generator=rng)) for silo in range(3)
    }
    noisy = {"noise_multiplier": 1.5, "delta": 1e-5, "record_rate": 0.25, **privacy}
    values = block(algorithm=SCAFFOLD, privacy=noisy, rounds=40 if privacy else 4)
    with loop(tmp_path, values, torch.nn.Linear(4, 3), records) as here:
        seen: list[tuple[int, Message]] = []

        def keep(silo: int, up: Message) -> Message:
            seen.append((silo, up))
            return up

        while here.round(keep) is not None:
            pass
        failed = here.silos[0].failure(seen[0][1])
        charged = {(charge.silo, charge.round) for charge in here.charges()}
    assert {up.header["status"] for _, up in seen} == ({"upload", "spent"} if privacy else {"upload"})
    for _, up in [*seen, (0, failed)]:
        assert set(up.header) == ALWAYS | MORE[up.header["status"]], up.header
    uploads = {(silo, up.header["round"]): up.vectors for silo, up in seen if up.header["status"] == "upload"}
    assert uploads.keys() == charged, "an upload for each charge"
    shapes = dict.fromkeys(("model", "control"), (15,))  # of a linear layer: 4 * 3 + 3
    for vectors in uploads.values():
        assert {name: tuple(value.shape) for name, value in vectors.items()} == shapes
    assert not failed.vectors and not any(up.vectors for _, up in seen if up.header["status"] != "upload")
