"""A silo's statement is never behind its ledger: at no charge, and wherever its process is killed, or power is cut."""

import functools
import itertools
import json
import math
import os
import re
import shutil
import stat
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dpfl_plugin.adapters import Server, Silo, agree, standing
from dpfl_plugin.owners.limits import Limits
from dpfl_plugin.privacy.accountants import PLD
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.views import server_view
from tests.adapters.federation import NOISY, PUBLIC, SimulatedSilo, block, loop
from tests.adapters.test_faults import Unplugged, module, records

DELTA = NOISY["delta"]


def proven(folder: Path) -> float:
    """Epsilon of the charges that are on disk."""
    ledger = folder / "ledger.jsonl"
    held = ledger.read_bytes() if ledger.exists() else b""
    return proven_by(held, ledger) if b"\n" in held else 0.0


@functools.cache  # most of what is written to the disk is no charge
def proven_by(held: bytes, ledger: Path) -> float:
    """Epsilon of a ledger that holds these bytes."""
    return server_view(Ledger.open(ledger, append=False), PLD(), DELTA).epsilon


def stated(folder: Path) -> tuple[float, float] | None:
    """(epsilon in the server's view, the least that privacy.md states): what is void states no end; None where nothing
    is stated."""
    files = folder / "ledger.json", folder / "privacy.md"
    if not all(file.exists() for file in files):
        return None
    said, text = json.loads(files[0].read_text()), files[1].read_text()
    epsilon = math.inf if said.get("guarantee", "").startswith("void") else said["views"]["server"]["epsilon"]
    if text.startswith("# Privacy statement: void"):
        return epsilon, math.inf
    (row,) = (line for line in text.splitlines() if line.startswith("| server, for the rounds that took place"))
    return epsilon, float(row.split("|")[2])


def check(folder: Path) -> bool:
    """Whether something is stated, which then is no less than what the ledger proves."""
    spent, said = proven(folder), stated(folder)
    assert said is not None or spent == 0, "charged, and nothing is stated"
    assert said is None or min(said) >= spent * (1 - 1e-9)
    return said is not None


@pytest.fixture
def watched(monkeypatch):
    """Calls a function, told after what, whenever something was written to disk, renamed or deleted there."""
    calls = []

    def wrap(owner, name):
        real = getattr(owner, name)

        def wrapped(*args, **kwargs):
            for call in calls:
                call(f"before {name}")
            found = real(*args, **kwargs)
            for call in calls:
                call(f"after {name}")
            return found

        monkeypatch.setattr(owner, name, wrapped)

    for owner, name in ((os, "fsync"), (os, "replace"), (Ledger, "append_all"), (Ledger, "sync")):
        wrap(owner, name)
    return calls.append


def one_silo(folder: Path, **changes):
    return loop(folder, block(**changes), module(), {0: records()[0]})


PLANS = {
    "noise is given": {"rounds": 40, "privacy": {**NOISY, "noise_multiplier": 4.0}},
    "noise is solved for": {"rounds": 36, "privacy": {"epsilon": 4.0, "delta": DELTA, "record_rate": 0.25}},
    "the budget ends it": {"rounds": 60, "privacy": {**NOISY, "noise_multiplier": 3.0, "epsilon": 3.0}},
    "it may take part so often": {"rounds": 40, "max_participations": 33, "privacy": {**NOISY, "noise_multiplier": 4}},
    "noise changes": {
        "rounds": 30,
        "privacy": {
            **NOISY,
            "noise_multiplier": 4.0,
            "schedule": {"name": "geometric", "by": "round", "beta": 0.97, "threshold": 1},
        },
    },
    "a silo is protected": {
        "rounds": 30,
        "algorithm": {"name": "fedavg", "local_steps": 1, "local_lr": 0.1},
        "privacy": {"unit": "silo", "noise_multiplier": 9.0, "delta": DELTA},
    },
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_the_statement_is_never_behind_the_ledger(tmp_path, watched, plan):
    """Asked whenever something is on its way to the disk, and after it: what a kill would leave."""
    folder, seen = tmp_path / "silo-0", []
    watched(lambda what: seen.append(check(folder)))
    with one_silo(tmp_path, **plan) as made:
        made.run()
        assert made.server.rounds > 16
        spent = proven(folder)
        said = json.loads((folder / "ledger.json").read_text())
    assert len(seen) > 200 and any(seen)
    assert said["views"]["server"]["epsilon"] == pytest.approx(spent, rel=1e-9), "in the end it is what was spent"
    assert said["num_charges"] == said["counted"]["in_ledger"]


def test_nor_where_the_folder_was_set_back_and_the_owner_knows_what_was_released(tmp_path, watched):
    """The owner's ledger has the rounds that the silo's own lost, and gives them back when the silo is opened."""
    limits = Limits(folder=tmp_path / "owner", epsilon=8.0, delta=1e-4, **PUBLIC)
    agreement = agree(block(privacy={"epsilon": 3.0, "delta": DELTA, "record_rate": 0.25}), num_silos=1, model=module())
    server, folder, seen = Server(agreement, module()), tmp_path / "owner" / "silo", []

    def silo():
        return Silo(agreement, 0, module(), records()[0], folder, limits=limits)

    for place in (tmp_path / "kept", tmp_path / "lost"):
        with silo() as one:
            server.receive(0, one.answer(server.begin()))
            server.end()
        shutil.copytree(folder, place)
    spent = proven(folder)
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "kept", folder)
    assert proven(folder) < spent
    watched(lambda what: seen.append(check(folder)))
    with silo():
        assert proven(folder) == spent
    assert len(seen) > 10 and all(seen)
    assert stated(folder)[0] == pytest.approx(spent, rel=1e-9)


class Disk:
    """What a power cut may leave of a folder.

    Of each name what it was when the folder was last synced, or what it is; of each file what it held when it was last
    synced, or what it holds. In any combination: file systems keep no order that nobody asked for.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._held: list[int] = []  # open files, whose numbers nobody else gets
        self._names: dict[str, int] = {}
        self._synced: dict[int, bytes] = {}

    def sync(self, handle: int) -> None:
        """It was asked to be on the disk."""
        if not stat.S_ISDIR(os.fstat(handle).st_mode):
            self._held.append(os.dup(handle))
            self._synced[os.fstat(handle).st_ino] = Path(f"/proc/self/fd/{handle}").read_bytes()
        elif self.folder.exists() and os.path.samestat(os.fstat(handle), os.stat(self.folder)):
            self._names = {path.name: path.stat().st_ino for path in self.folder.iterdir()}

    def may_hold(self, name: str) -> set[bytes | None]:
        """None: there is no such file."""
        path = self.folder / name
        found = {self._synced.get(self._names[name], b"") if name in self._names else None}
        return found | ({path.read_bytes(), self._synced.get(path.stat().st_ino, b"")} if path.exists() else {None})

    def close(self) -> None:
        for handle in self._held:
            os.close(handle)


FILES = ("ledger.jsonl", "ledger.json", "privacy.md")


def test_a_power_cut_leaves_a_statement_that_is_not_behind(tmp_path, monkeypatch, watched):
    """At any moment; and a silo that is started again from what is left charges nothing that is not stated."""
    folder, left = tmp_path / "silo-0", tmp_path / "left"
    disk, seen, torn, real = Disk(folder), set(), [], os.fsync

    def synced(handle):
        real(handle)
        disk.sync(handle)

    def look(what):
        if not folder.exists():
            return
        for state in set(itertools.product(*map(disk.may_hold, FILES))) - seen:
            seen.add(state)
            put(left, state)
            check(left)
            if state[0] and page_is_older(state[1:]) and not torn:
                torn.append(shutil.copytree(folder, tmp_path / "torn", ignore=shutil.ignore_patterns(".*")))
                put(torn[0], state)

    monkeypatch.setattr(os, "fsync", synced)
    watched(look)
    gone_on = 0
    with one_silo(tmp_path, rounds=18, privacy={**NOISY, "noise_multiplier": 4.0}) as made:
        for _ in range(18):
            message = made.server.begin()
            answer = made.silos[0].answer(message)
            if torn:
                with SimulatedSilo(made.agreement, 0, module(), records()[0], torn[0]) as again:
                    again.answer(message)
                    gone_on += check(torn[0])
                shutil.rmtree(torn.pop())
            made.server.receive(0, answer)
            assert made.server.end()
    disk.close()
    assert len(seen) > 60 and gone_on > 10


def put(folder: Path, state) -> None:
    folder.mkdir(exist_ok=True)
    for name, content in zip(FILES, state, strict=True):
        (folder / name).unlink(missing_ok=True)
        if content is not None:
            (folder / name).write_bytes(content)


def page_is_older(pages: list[bytes | None]) -> bool:
    """Whether `privacy.md` counts fewer charges than `ledger.json`."""
    if not all(pages):
        return False
    (count,) = re.findall(r"The numbers count (\d+) charges", pages[1].decode())
    return int(count) < json.loads(pages[0])["num_charges"]


class Late:
    """A thread that does nothing until it is waited for."""

    def __init__(self, target, name):
        self.start, self.join = (lambda: None), target


def test_what_is_written_while_a_silo_trains_is_waited_for_before_the_charge(tmp_path, watched, monkeypatch):
    monkeypatch.setattr(standing, "Thread", Late)
    folder, seen = tmp_path / "silo-0", []
    watched(lambda what: seen.append(check(folder)))
    with one_silo(tmp_path, rounds=3) as made:
        made.run()
    assert any(seen) and stated(folder)[0] == pytest.approx(proven(folder), rel=1e-9)


def test_what_was_written_while_a_silo_trained_is_no_word_on_what_it_charges(tmp_path, watched, monkeypatch):
    """Fewer gradients are expected than are computed: the statement is of those that were."""
    folder = tmp_path / "silo-0"
    with one_silo(tmp_path, rounds=3) as made:
        account = made.silos[0]._account
        expects = account.charges
        monkeypatch.setattr(account, "charges", lambda *args: [replace(c, count=c.count - 1) for c in expects(*args)])
        watched(lambda what: check(folder))
        made.round()
        assert check(folder)


def test_a_folder_is_not_left_while_its_statement_is_written(tmp_path, monkeypatch):
    """Training fails: the next process that opens the folder finds nobody writing there."""
    monkeypatch.setattr(standing, "Thread", Late)
    folder = tmp_path / "silo-0"
    with one_silo(tmp_path, rounds=3) as made:
        monkeypatch.setattr(made.silos[0]._host, "run", _dies)
        with pytest.raises(Unplugged):
            made.silos[0].answer(made.server.begin())
        assert stated(folder) is None
    assert check(folder) and stated(folder)[0] > 0 and proven(folder) == 0


class Interrupted(Late):
    """Somebody presses Ctrl-C while it is waited for."""

    def __init__(self, target, name):
        def join(calls=[_interrupts, target]):  # noqa: B006, the calls that are left
            calls.pop(0)()

        self.start, self.join = (lambda: None), join


def _interrupts():
    raise KeyboardInterrupt


def test_nor_where_waiting_for_it_is_interrupted(tmp_path, monkeypatch):
    monkeypatch.setattr(standing, "Thread", Interrupted)
    folder = tmp_path / "silo-0"
    with pytest.raises(KeyboardInterrupt), one_silo(tmp_path, rounds=3) as made:
        made.silos[0].answer(made.server.begin())
    assert check(folder) and proven(folder) == 0


def test_what_is_counted_ahead_is_little_and_within_the_budget(tmp_path):
    folder = tmp_path / "silo-0"
    with one_silo(tmp_path, rounds=80, privacy={"epsilon": 4.0, "delta": DELTA, "record_rate": 0.25}) as made:
        written = []
        while made.round():
            said = json.loads((folder / "ledger.json").read_text())
            epsilon, spent = said["views"]["server"]["epsilon"], proven(folder)
            written.append(json.loads((folder / "details.json").read_text())["head"])
            assert spent <= epsilon * (1 + 1e-9) and epsilon <= 4.0
            assert epsilon <= 1.05 * spent
            if len(written) <= 16:
                assert epsilon == pytest.approx(spent, rel=1e-9)
            ahead = said["counted"]["rounds_ahead"]
            assert ahead <= len(written) / 16 and said["run"]["rounds"] <= len(written)
            text = (folder / "privacy.md").read_text()
            assert f"The numbers count {said['num_charges']} charges" in text
            assert ("future rounds like the last one" in text) == (ahead > 0)
    assert len(set(written)) < 45, "an accounting of all rounds after each of them would dominate a long run"


def test_who_settles_a_statement_may_have_it_serve_two_rounds_from_the_first_on(tmp_path):
    folder, written, ahead = tmp_path / "silo-0", [], []
    with one_silo(tmp_path, rounds=9, privacy={"epsilon": 4.0, "delta": DELTA, "record_rate": 0.25}) as made:
        made.silos[0].standing.least_ahead = 1
        while made.round():
            assert check(folder)
            said = json.loads((folder / "ledger.json").read_text())
            written.append(said["counted"]["in_ledger"])
            ahead.append(said["counted"]["rounds_ahead"])
            assert said["views"]["server"]["epsilon"] <= 4.0
            text = (folder / "privacy.md").read_text()
            assert ("future rounds like the last one" in text) == (ahead[-1] > 0)
            if made.server.rounds == 3:
                made.silos[0].standing.settle()
                assert stated(folder)[0] == pytest.approx(proven(folder), rel=1e-9)
    assert ahead == [1, 1, 1, 1, 1, 1, 1, 1, 0]
    assert len(set(written)) < 7


@pytest.mark.parametrize("at", ["statement", "half a statement", "append", "sync"])
def test_a_silo_that_is_killed_and_started_again_after_every_round_is_never_behind(tmp_path, monkeypatch, watched, at):
    folder, dead = tmp_path / "silo-0", [0]
    watched(lambda what: check(folder))
    for attempt in range(24):
        with one_silo(tmp_path, rounds=40) as made:
            message = made.server.begin()
            if attempt % 3 == 1:
                owner, name = {
                    "statement": (os, "replace"),
                    "half a statement": (os, "replace"),
                    "append": (type(made.silos[0]._account), "append"),
                    "sync": (type(made.silos[0]._account), "sync"),
                }[at]
                with monkeypatch.context() as patch:
                    patch.setattr(owner, name, _dies if at != "half a statement" else _dies_later(getattr(owner, name)))
                    with pytest.raises(Unplugged):
                        made.silos[0].answer(message)
                dead[0] += 1
            else:
                made.server.receive(0, made.silos[0].answer(message))
                assert made.server.end()
        check(folder)
    assert dead[0] == 8 and stated(folder) is not None


def _dies(*args, **kwargs):
    raise Unplugged


def _dies_later(call):
    """When it is called the third time: details.json and privacy.md are written, ledger.json is not."""
    left = [call, call]
    return lambda *args, **kwargs: (left.pop() if left else _dies)(*args, **kwargs)


def test_a_statement_that_an_earlier_version_left_behind_is_renewed_when_the_folder_is_opened(tmp_path):
    folder = tmp_path / "silo-0"
    with one_silo(tmp_path) as made:
        made.round()
        old = [(folder / name).read_bytes() for name in ("ledger.json", "privacy.md")]
        made.round(), made.round()
        agreement = made.agreement
    for name, content in zip(("ledger.json", "privacy.md"), old, strict=True):
        (folder / name).write_bytes(content)
    assert min(stated(folder)) < proven(folder)
    with SimulatedSilo(agreement, 0, module(), records()[0], folder):
        assert check(folder)
    said = json.loads((folder / "ledger.json").read_text())
    del said["counted"]  # as it was
    (folder / "ledger.json").write_text(json.dumps(said))
    with SimulatedSilo(agreement, 0, module(), records()[0], folder):
        assert "counted" in json.loads((folder / "ledger.json").read_text())


def test_nothing_is_charged_where_the_statement_cannot_be_written(tmp_path, monkeypatch):
    with one_silo(tmp_path) as made:
        message = made.server.begin()
        monkeypatch.setattr(os, "replace", _dies)
        with pytest.raises(Unplugged):
            made.silos[0].answer(message)
        monkeypatch.undo()
        assert len(made.silos[0]._ledger) == 0
    shutil.rmtree(tmp_path)


def test_a_server_that_changes_its_plan_is_not_ahead_of_the_statement(tmp_path):
    """More releases than were counted ahead: the statement is renewed before they are charged."""
    folder = tmp_path / "silo-0"
    with one_silo(tmp_path, rounds=60, privacy={**NOISY, "noise_multiplier": 4.0}) as made:
        for round in range(30):
            message = made.server.begin()
            if round % 4 == 3:
                message.header["plan"]["num_gradients"] = message.header["plan"]["local_steps"] = 2 + round
            answer = made.silos[0].answer(message)
            assert check(folder) and torch.isfinite(answer.vectors["model"]).all()
            made.server.receive(0, answer)
            made.server.end()
