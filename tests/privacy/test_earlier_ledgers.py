"""Ledgers that earlier versions wrote: read, continued, and with the same epsilon."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from dpfl_plugin.errors import LedgerError
from dpfl_plugin.privacy.accountants import PLD
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.shared_ledger import adaptive_total
from dpfl_plugin.privacy.views import server_composed

FOLDER = Path(__file__).with_name("ledgers")
DELTA = 1e-5
# name: (charges, of each run of a shared ledger, last checksum, epsilon of the server)
LEDGERS: dict[str, tuple[int, list[int], str, float]] = {
    "run": (30, [], "fe3e77e2e6acc909", 1.6751356618051143),
    "shared": (16, [10, 6, 0], "37f52c3ba0f34875", 1.6751356618051143),  # a limit, slots, a run that has not begun
    "without_kinds": (14, [], "6759c6325a0b9a52", 0.7860384024578635),
    "lifetime": (6, [3, 3], "5b218d4aec116305", 0.823561348947904),
    "lifetime_before_filters": (3, [2, 1], "b7a1d7c8d55a1c90", 3.56036613169137),
}


def epsilon(ledger: Ledger) -> float:
    return server_composed(ledger.tally).stated(PLD(), DELTA).epsilon


@pytest.fixture(params=LEDGERS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def path(name: str, tmp_path: Path) -> Path:
    return Path(shutil.copy(FOLDER / f"{name}.jsonl", tmp_path))


def test_it_is_read(name: str, path: Path) -> None:
    number, of_runs, head, expected = LEDGERS[name]
    ledger = Ledger.open(path, append=False)
    assert (len(ledger), ledger.head, ledger.notes) == (number, head, [])
    runs = dict.fromkeys(str(facts["noise"]) for facts in ledger.runs)
    assert [len(ledger.of_run(run)) for run in runs] == of_runs
    assert epsilon(ledger) == pytest.approx(expected, rel=1e-12)
    if name == "shared":
        assert adaptive_total(ledger, DELTA)["epsilon"] == 4.0


def test_it_goes_on(name: str, path: Path) -> None:
    """What it holds is not charged again, and what is new comes on top."""
    before, number = path.read_bytes(), LEDGERS[name][0]
    with Ledger.open(path) as ledger:
        charges = list(ledger)
        ledger.append(charges)
        assert (len(ledger), ledger.head) == (number, LEDGERS[name][2])
        again = [replace(charge, noise_id=f"again.{charge.noise_id}") for charge in charges]
        ledger.append(again)
    after = Ledger.open(path, append=False)
    assert path.read_bytes().startswith(before) and Counter(after) == Counter([*charges, *again])
    assert epsilon(after) > LEDGERS[name][3]


def test_a_last_line_that_was_cut_off_is_set_aside(name: str, path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]) + lines[-1][:40])
    with Ledger.open(path) as ledger:
        (note,) = ledger.notes
        assert note.startswith("a last line of 40 bytes was cut off")
    after = Ledger.open(path, append=False)
    assert after.notes == [note] and path.with_name(f"{path.name}.torn-1").read_bytes() == lines[-1][:40]
    assert path.read_bytes().startswith(b"".join(lines[:-1]))


def test_one_that_was_cut_off_in_its_first_line_is_no_ledger(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(LedgerError, match="no complete first line"):
        Ledger.open(path)
