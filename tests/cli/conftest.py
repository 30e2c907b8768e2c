"""What tests of the command line share."""

from __future__ import annotations

import pytest


@pytest.fixture
def pictures() -> None:
    """For tests that want curves drawn."""


@pytest.fixture(autouse=True)
def no_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A picture takes longer than a small run: drawn for those tests only that ask for `pictures`."""
    if "pictures" not in request.fixturenames:
        for name in ("run.curves", "attack.attack_plot.membership", "attack.attack_plot.inversion"):
            monkeypatch.setattr(f"dpfl_plugin.cli.{name}", lambda *args: None)
