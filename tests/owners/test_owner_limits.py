"""`dpfl.limits` and `dpfl limits`: what is left, or why that cannot be told; nothing is made or written."""

from __future__ import annotations

import html
from collections.abc import Callable
from pathlib import Path

import pytest

import dpfl_plugin as dpfl
from dpfl_plugin.errors import ConfigError, DpflError, LedgerError, LimitError
from dpfl_plugin.owners import limits as limits_module
from dpfl_plugin.owners.lifetime import opened
from dpfl_plugin.owners.limits import read_limits
from tests.cli.command import dpfl as command
from tests.cli.command import write

PRIVACY = {"noise_multiplier": None, "epsilon": 3.0, "delta": 1e-5, "randomness": "fresh"}
LEDGER, MARKER = "data.lifetime.jsonl", "data.lifetime.json"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An owner's limits, by which one run of epsilon 3 was made."""
    path = tmp_path / "limits.yaml"
    set_to(path)
    monkeypatch.setattr(limits_module, "PLACES", ())
    monkeypatch.setenv("DPFL_LIMITS", str(path))
    dpfl.load(write(tmp_path, {"name": "one", "privacy": PRIVACY, "rounds": 2, "out": str(tmp_path / "runs")})).run()
    return path


def set_to(path: Path, **values: object) -> None:
    given = {"folder": path.parent / "owner", "epsilon": 8, "delta": "1e-4", **values}
    path.write_text("".join(f"{key}: {value}\n" for key, value in given.items()))
    path.chmod(0o600)


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_what_is_left_is_the_same_by_both_doors(file: Path) -> None:
    before = everything(file.parent / "owner")
    with opened(read_limits(file)):  # a silo is at work
        found, said = dpfl.limits(), command("limits", file, "--json").json
    assert everything(file.parent / "owner").keys() - before.keys() <= {str(file.parent / "owner" / ".data.lock")}
    assert (found.epsilon_left, found.delta_left) == (said["left"]["epsilon"], said["left"]["delta"])
    assert 7 < found.epsilon_left < 8 and found.delta_left == 1e-4 and not found.exceeded
    assert 2.3 < found.epsilon_total < 3.0 and said["total"] == found.epsilon_total  # at a larger delta
    assert [(one["name"], one["epsilon"]) for one in said["agreements"]] == [("one", 3.0)]
    assert said["file"] == found.limits.source == str(file) and said["folder"] == str(file.parent / "owner")
    told = command("limits").out
    assert (
        "in order" in told and "agreed: epsilon 3 at delta 1e-05: one" in told and "left: about 7.2 at 0.0001" in told
    )


def test_limits_below_what_is_agreed_say_so(file: Path) -> None:
    set_to(file, epsilon=2)
    found = dpfl.limits(file)
    assert found.exceeded and found.epsilon_left == 0
    told = command("limits", file).out
    assert told == f"{found}\n" and found._repr_html_() == f"<pre>{html.escape(str(found))}</pre>"
    assert "left: about 0 at" in told and "agreements that are under way stop" in told


def test_before_the_first_agreement_nothing_is_made(tmp_path: Path) -> None:
    set_to(tmp_path / "limits.yaml")
    assert dpfl.limits(tmp_path / "limits.yaml").epsilon_left == 8
    assert not (tmp_path / "owner").exists()


@pytest.mark.parametrize(
    ("spoil", "error", "says"),
    [
        (lambda owner: (owner / LEDGER).unlink(), LedgerError, "is missing, though"),
        (
            lambda owner: (owner / LEDGER).write_bytes(b"".join((owner / LEDGER).read_bytes().splitlines(True)[:-1])),
            LedgerError,
            "does not hold the line",
        ),
        (lambda owner: owner.chmod(0o777), ConfigError, "can be written by others"),
        (
            lambda owner: set_to(owner.parent / "limits.yaml", unit="silo"),
            LimitError,
            "contradicts the lifetime ledger",
        ),
        (lambda owner: (owner.parent / "limits.yaml").unlink(), ConfigError, "cannot be read"),
    ],
    ids=["gone", "set back", "open to others", "another unit", "no file"],
)
def test_what_cannot_be_told_is_an_error_by_both_doors(
    file: Path, spoil: Callable[[Path], object], error: type[DpflError], says: str
) -> None:
    """A ledger that is gone would else look like one of which nothing is spent."""
    spoil(file.parent / "owner")
    with pytest.raises(error, match=says) as raised:
        dpfl.limits(file)
    done = command("limits", file)
    assert (done.code, done.err, done.out) == (raised.value.exit_code, f"dpfl: {raised.value}\n", "")


def test_a_machine_without_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits_module, "PLACES", ())
    monkeypatch.delenv("DPFL_LIMITS", raising=False)
    with pytest.raises(ConfigError, match="no limits are set for these data on this machine"):
        dpfl.limits()
