"""Noise and batches by names alone, whatever is asked: what two algorithms make of the same noise is compared."""

import pytest

from dpfl_plugin.federation.silo_group import SiloGroup


@pytest.fixture(autouse=True)
def by_names_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for user in ("federation.silo_group", "runtimes.in_process"):
        monkeypatch.setattr(f"dpfl_plugin.{user}.asked_at", lambda draw, down, plan: draw)
    monkeypatch.setattr(SiloGroup, "_own", lambda self, ids: {})
