"""The ledger loses nothing that was synced, counts nothing twice, and refuses what was changed."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import resource
import signal
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfl_plugin.errors import LedgerError
from dpfl_plugin.privacy.events import Charge, SampledGaussian
from dpfl_plugin.privacy.ledger import Ledger

RELEASE = SampledGaussian(noise_multiplier=60.0, sampler="fixed", rate=0.2, neighbouring="replace_one")


def charge(round: int = 0, silo: int = 0, count: int = 50, noise_id: str = "s", **more: object) -> Charge:
    return replace(Charge(round=round, silo=silo, release=RELEASE, count=count, noise_id=noise_id), **more)  # type: ignore[arg-type]


def write(path: Path, charges: list[list[Charge]]) -> None:
    with Ledger(path, {"run": "r1"}) as ledger:
        for batch in charges:
            ledger.append(batch)
            ledger.sync()


@pytest.fixture
def three(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.jsonl"
    write(path, [[charge(t, s) for s in (0, 1, 5)] for t in range(3)])
    return path


def test_what_is_appended_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    charges = [
        charge(0, 3, share=(0.1, 1 / 3)),
        charge(0, 4, noise_id="other"),
        charge(1, 3, count=7),
        charge(1, 4, release=replace(RELEASE, rate=1 / 7, noise_multiplier=1e-3)),
        charge(2, 3, noise_id='"\n\\é'),
        charge(2, 4, kind="score"),
        charge(2, 5, kind="personalise"),
        charge(2, 6, kind=None),  # of an older ledger, copied
    ]
    write(path, [charges])
    for ledger in (Ledger.open(path), Ledger.open(path, append=False)):
        assert set(ledger) == set(charges) and len(ledger) == 8
        assert sorted((c.silo, c.kind or "") for c in ledger) == sorted((c.silo, c.kind or "") for c in charges)
        assert ledger.facts == {"run": "r1"} and ledger.notes == []
        ledger.close()


@pytest.mark.parametrize("where", ["memory", "file"])
def test_the_same_bits_count_once(tmp_path: Path, where: str) -> None:
    path = tmp_path / "ledger.jsonl" if where == "file" else None
    ledger = Ledger(path)
    ledger.append([charge(), charge()])
    ledger.append([charge()])
    assert list(ledger) == [charge()]
    ledger.append([charge(count=20)])  # a part of what was charged
    assert list(ledger) == [charge()]
    ledger.append([charge(count=60)])  # more of the same bits
    assert list(ledger) == [charge(count=60)]
    others = [
        charge(noise_id="fresh"),
        charge(round=1),
        charge(silo=1),
        charge(share=(0.0, 0.5)),
        charge(release=replace(RELEASE, rate=0.3)),
    ]
    ledger.append(others)
    ledger.close()
    assert set(ledger) == {charge(count=60), *others}
    if path:
        assert set(Ledger.open(path, append=False)) == set(ledger)


def test_a_replay_after_reopening_counts_once(three: Path) -> None:
    before = set(Ledger.open(three, append=False))
    size = three.stat().st_size
    with Ledger.open(three) as ledger:
        ledger.append(charge(2, s) for s in (0, 1, 5))
        ledger.sync()
        assert three.stat().st_size == size
        ledger.append([charge(2, 0, noise_id="fresh"), charge(3, 0)])
    assert set(Ledger.open(three, append=False)) == before | {charge(2, 0, noise_id="fresh"), charge(3, 0)}


def test_a_round_of_ten_thousand_silos_is_compact(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    write(path, [[charge(0, s) for s in range(10_000)]])
    assert path.stat().st_size < 1000
    assert len(Ledger.open(path, append=False)) == 10_000


def test_silos_with_noise_of_their_own_stay_apart(tmp_path: Path) -> None:
    charges = [charge(0, s, noise_id=f"silo-{s % 7}") for s in range(100)] + [charge(0, 3, noise_id="again")]
    write(tmp_path / "l", [charges])
    assert set(Ledger.open(tmp_path / "l", append=False)) == set(charges)


@pytest.mark.slow
def test_speed(tmp_path: Path) -> None:
    start = time.process_time()
    path = tmp_path / "ledger.jsonl"
    with Ledger(path) as ledger:
        for t in range(400):
            ledger.append([charge(t, s, noise_id=f"{t}") for s in range(250)])
    assert len(Ledger.open(path, append=False)) == 100_000
    assert time.process_time() - start < 100  # a quadratic algorithm would take more, a slow machine does not


# Damage


def mutations(line: bytes) -> list[Callable[[bytes], bytes]]:
    """Each kind of change at positions of every kind: braces, keys, digits, the checksum."""

    def flip(at: int) -> Callable[[bytes], bytes]:
        return lambda x: x[:at] + bytes([x[at] ^ 1]) + x[at + 1 :]

    def drop(at: int) -> Callable[[bytes], bytes]:
        return lambda x: x[:at] + x[at + 1 :]

    def insert(at: int) -> Callable[[bytes], bytes]:
        return lambda x: x[:at] + b" " + x[at:]

    return [kind(at) for at in range(len(line)) for kind in (flip, drop, insert)]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_changed_line_is_refused_wherever_it_was_changed(three: Path, number: int) -> None:
    lines = three.read_bytes().splitlines()
    good = lines[number - 1]
    for change in mutations(good):
        damaged = change(good)
        three.write_bytes(b"\n".join([*lines[: number - 1], damaged, *lines[number:]]) + b"\n")
        with pytest.raises(LedgerError, match=f"line {number}:"):
            Ledger.open(three)
    assert not list(three.parent.glob("*.torn-*"))


def test_missing_doubled_and_swapped_lines_are_refused(three: Path) -> None:
    a, b, c, d = three.read_bytes().splitlines()
    for lines, number in (([a, c, d], 2), ([a, b, b, c, d], 3), ([a, c, b, d], 2), ([b, c, d], 1), ([a, b, b""], 3)):
        three.write_bytes(b"\n".join(lines) + b"\n")
        with pytest.raises(LedgerError, match=f"line {number}:"):
            Ledger.open(three)


def test_the_message_says_what_is_proven(three: Path) -> None:
    lines = three.read_bytes().splitlines()
    three.write_bytes(b"\n".join([*lines[:3], b"{}", lines[3]]) + b"\n")
    with pytest.raises(LedgerError, match=r"line 4.*Lines 1 to 3 are intact and prove 6 charges up to round 1"):
        Ledger.open(three)


def test_a_line_of_another_schema_is_refused(tmp_path: Path) -> None:
    from dpfl_plugin.privacy import ledger_file as module

    path = tmp_path / "ledger.jsonl"
    body = b'{"facts":{},"ledger":2}'
    path.write_bytes(body[:-1] + b',"check":"' + module._checksum("", body).encode() + b'"}\n')
    with pytest.raises(LedgerError, match="schema version 2"):
        Ledger.open(path)


def test_every_torn_last_line_is_set_aside_and_noted(three: Path) -> None:
    data = three.read_bytes()
    start = data[:-1].rindex(b"\n") + 1
    for end in range(start + 1, len(data) - 1):
        three.write_bytes(data[:end])
        reader = Ledger.open(three, append=False)
        assert len(reader) == 6 and "cut off" in reader.notes[0]
        assert three.read_bytes() == data[:end]  # reading changes nothing
        with Ledger.open(three) as ledger:
            assert len(ledger) == 6 and "cut off" in ledger.notes[0]
            ledger.append([charge(9, 9)])
        again = Ledger.open(three, append=False)
        assert charge(9, 9) in set(again) and again.notes == ledger.notes
        aside = sorted(three.parent.glob("*.torn-*"), key=lambda p: int(p.name.rsplit("-")[-1]))
        assert aside[-1].read_bytes() == data[start:end] and aside[-1].name in again.notes[0]


def test_a_whole_last_line_without_its_newline_counts(three: Path) -> None:
    three.write_bytes(three.read_bytes()[:-1])
    with Ledger.open(three) as ledger:
        assert len(ledger) == 9 and ledger.notes == []
        ledger.append([charge(3)])
    assert len(Ledger.open(three, append=False)) == 10


def test_something_after_a_whole_last_line_is_damage(three: Path) -> None:
    data = three.read_bytes()
    for tail in (b"x", b"\x00", b" "):
        three.write_bytes(data[:-1] + tail)
        with pytest.raises(LedgerError, match="line 4"):
            Ledger.open(three)


def test_a_missing_or_empty_ledger(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="cannot be read"):
        Ledger.open(tmp_path / "none")
    (tmp_path / "empty").touch()
    with pytest.raises(LedgerError, match="no complete first line"):
        Ledger.open(tmp_path / "empty")


def test_an_existing_ledger_is_never_overwritten(three: Path) -> None:
    before = three.read_bytes()
    with pytest.raises(LedgerError, match="exists"):
        Ledger(three)
    assert three.read_bytes() == before


def test_head_shows_lines_missing_at_the_end(three: Path) -> None:
    head = Ledger.open(three, append=False).head
    lines = three.read_bytes().splitlines(keepends=True)
    assert json.loads(lines[-1])["check"] == head
    three.write_bytes(b"".join(lines[:-1]))
    assert Ledger.open(three, append=False).head != head


# Writing that fails


@pytest.mark.parametrize(
    "bad",
    [
        charge(count=0), charge(round=-1), charge(silo=-1), charge(share=(0.5, 0.5)), charge(share=(0.0, 1.5)),
        charge(release=replace(RELEASE, noise_multiplier=float("nan"))), charge(noise_id=""),
        charge(count=1.5),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_a_senseless_charge_is_refused_before_anything_is_written(tmp_path: Path, bad: Charge) -> None:
    path = tmp_path / "ledger.jsonl"
    with Ledger(path) as ledger:
        with pytest.raises(LedgerError, match="no sense"):
            ledger.append([charge(), bad])
        assert len(ledger) == 0
        ledger.append([charge()])
    assert list(Ledger.open(path, append=False)) == [charge()]


def test_after_a_sync_all_of_it_is_in_the_file(tmp_path: Path) -> None:
    """While the ledger is open: nothing waits in this process, which may be killed."""
    path = tmp_path / "ledger.jsonl"
    with Ledger(path) as ledger:
        for t in range(3):
            ledger.append([charge(t)])
            ledger.sync()
            assert path.read_bytes().count(b"\n") == t + 2  # facts, and a line for each charge
            assert set(Ledger.open(path, append=False)) == {charge(round) for round in range(t + 1)}


def test_what_a_killed_process_did_not_sync_is_synced_before_anything_leaves(
    three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ledger that is read may have lines of which nobody knows that they are on disk; what is known to be is not
    waited for again."""
    waits: list[int] = []
    with Ledger.open(three) as ledger:
        monkeypatch.setattr(os, "fsync", waits.append)
        ledger.append(list(ledger)[:1])  # known, and not written again
        for expected in (1, 1):
            ledger.sync()
            assert len(waits) == expected
        ledger.append([charge(77)])
        ledger.sync()
    assert len(waits) == 2


def test_after_a_failed_sync_nothing_more_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.append([charge()])

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(LedgerError, match="may leave"):
            ledger.sync()
    for action in (ledger.sync, lambda: ledger.append([charge(1)])):
        with pytest.raises(LedgerError):
            action()
    ledger.close()


@pytest.mark.parametrize(("number", "refused"), [(errno.EIO, True), (errno.EACCES, True), (errno.EINVAL, False)])
def test_a_ledger_whose_name_a_power_cut_could_take_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, refused: bool
) -> None:
    """Unless the file system syncs no folders (EINVAL): there is nothing to be done about that."""
    fsync = os.fsync

    def failing(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(number, os.strerror(number))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", failing)
    path = tmp_path / "ledger.jsonl"
    if refused:
        with pytest.raises(LedgerError, match=rf"{tmp_path} cannot be synced: {os.strerror(number)}. Nothing was"):
            Ledger(path)
    else:
        with Ledger(path) as ledger:
            ledger.append([charge(0)])
            ledger.sync()


def test_reading_and_closed_ledgers_take_no_charges(three: Path) -> None:
    reader = Ledger.open(three, append=False)
    closed = Ledger.open(three)
    closed.close()
    for ledger in (reader, closed):
        with pytest.raises(LedgerError):
            ledger.append([charge(7)])
        with pytest.raises(LedgerError):
            ledger.sync()


# Crashes


def release_until_killed(path: Path, out: int) -> None:
    """Rounds of 100 silos; what leaves is written to ``out``, a number and the end of a line."""
    ledger = Ledger.open(path) if path.exists() else Ledger(path, {"run": "r"})
    t = max((c.round for c in ledger), default=-1) + 1
    while True:
        ledger.append(Charge(round=t, silo=s, release=RELEASE, count=1, noise_id=f"{t}") for s in range(0, 200, 2))
        ledger.sync()
        os.write(out, b"%d\n" % t)
        t += 1


@pytest.mark.slow
def test_killed_anywhere_nothing_that_left_is_missing(tmp_path: Path) -> None:
    """Twelve kills -9 at random points of one run: it opens each time, and holds every round that was announced."""
    path = tmp_path / "ledger.jsonl"
    generator = random.Random(0)
    left = -1
    for _ in range(12):
        read, write_end = os.pipe()
        if (pid := os.fork()) == 0:
            try:
                release_until_killed(path, write_end)
            finally:
                os._exit(1)
        os.close(write_end)
        with os.fdopen(read) as said:
            announced = [said.readline()]
            time.sleep(generator.random() * 0.03)
            os.kill(pid, signal.SIGKILL)
            announced += said.readlines()
        assert os.WIFSIGNALED(os.waitpid(pid, 0)[1]), "it ended by itself"
        left = max([left, *(int(line) for line in announced if line.endswith("\n"))])
        ledger = Ledger.open(path, append=False)
        silos: dict[int, int] = {}
        for one in ledger:
            silos[one.round] = silos.get(one.round, 0) + 1
        assert set(range(left + 1)) <= set(silos)
        assert set(silos.values()) == {100}
    assert left >= 11


Step = tuple[str, list[Charge], float]


def steps() -> st.SearchStrategy[list[Step]]:
    """What happens to a ledger, with charges, and where in the lines that were not synced the file ends."""
    one = st.builds(
        charge,
        round=st.integers(0, 3),
        silo=st.integers(0, 3),
        count=st.integers(1, 3),
        noise_id=st.sampled_from(["s", f"run.{7:032x}", f"run.{8:032x}"]),
        kind=st.sampled_from(["round", "score"]),
    )
    actions = st.sampled_from(["append", "append", "sync", "run", "crash", "full disk", "close"])
    return st.lists(st.tuples(actions, st.lists(one, max_size=4), st.floats(0, 1)), max_size=12)


@settings(deadline=None)
@given(steps())
def test_what_was_synced_is_there_whatever_happens(tmp_path_factory: pytest.TempPathFactory, made: list[Step]) -> None:
    """Appended, synced, crashed or out of space at any byte, opened again: a plain dictionary says what must be there,
    and what may be."""
    path: Path = tmp_path_factory.mktemp("ledger") / "l"
    ledger = Ledger(path)
    synced, appended, on_disk = Counter[Any](), Counter[Any](), path.stat().st_size
    for action, charges, where in made:
        if action == "append":
            ledger.append(charges)
            appended |= counts(charges)
        elif action == "run":
            ledger.begin_run({"noise": "another"})
        elif action == "sync":
            ledger.sync()
            synced, on_disk = appended.copy(), path.stat().st_size
        else:
            size = on_disk + int(where * 200 * (len(charges) + 1))
            with limited(size) if action == "full disk" else contextlib.nullcontext():
                if action == "full disk":
                    with contextlib.suppress(LedgerError):  # if there is room for all, there is nothing to raise
                        ledger.append(charges)
                        appended |= counts(charges)
                        ledger.sync()
                        synced, on_disk = appended.copy(), path.stat().st_size
                with contextlib.suppress(LedgerError):
                    ledger.close()
            if action == "close":
                synced, on_disk = appended.copy(), path.stat().st_size
            elif action == "crash":
                os.truncate(path, min(max(size, on_disk), path.stat().st_size))
            ledger = Ledger.open(path)
            known = counts(ledger)
            assert synced <= known <= appended
            synced, appended, on_disk = known.copy(), known.copy(), path.stat().st_size
    ledger.close()
    assert counts(Ledger.open(path, append=False)) == appended


def counts(charges: Iterable[Charge]) -> Counter[Any]:
    """Each release once, with the largest count."""
    largest: Counter[Any] = Counter()
    for one in charges:
        largest |= Counter({replace(one, count=1): one.count})
    return largest


@contextlib.contextmanager
def limited(size: int) -> Iterator[None]:
    """Files of this process cannot become larger."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_fork_of_the_process_that_has_it_charges_nothing(tmp_path: Path) -> None:
    """Else both would release what the other does not count, and leave a file whose lines contradict each other."""
    path = tmp_path / "ledger.jsonl"
    read, write_end = os.pipe()
    with Ledger(path, {"run": "r1"}) as ledger:
        ledger.append([charge(0)])
        ledger.sync()
        if (pid := os.fork()) == 0:
            said = "charged"
            try:
                ledger.append([charge(1)])
                ledger.sync()
            except LedgerError as error:
                said = str(error)
            ledger.close()
            os.write(write_end, said.encode())
            os._exit(0)
        os.waitpid(pid, 0)
        assert f"was opened by process {os.getpid()}, of which this is a fork" in os.read(read, 1000).decode()
        ledger.append([charge(2)])
    assert [one.round for one in Ledger.open(path, append=False)] == [0, 2]
