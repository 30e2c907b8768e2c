"""Noise and batches by names alone, whatever is asked: what two algorithms make of the same noise is compared."""

import pytest

from dpfl_plugin.training.host import SiloHost


@pytest.fixture(autouse=True)
def by_names_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for user in ("training.host", "runtimes.in_process"):
        monkeypatch.setattr(f"dpfl_plugin.{user}.asked_at", lambda draw, down, plan: draw)
    monkeypatch.setattr(SiloHost, "_own", lambda self, ids: {})
