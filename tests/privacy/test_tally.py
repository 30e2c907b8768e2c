"""Charges in compact form are what a plain dictionary of them is."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfl_plugin.privacy.events import Charge, SampledGaussian, batches
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.tally import Names, Tally

RELEASE = SampledGaussian(noise_multiplier=60.0, sampler="fixed", rate=0.2, neighbouring="replace_one")
DIGEST = "fb31417c06eda1316504bbe2c810b528"
NOISE_IDS = (  # as runs write them, and what looks like these
    f"run-records.{DIGEST}.0",
    f"run-records.{'0' * 32}.0",
    f"run-records.{DIGEST}.f",
    f"run-other.{DIGEST}.0",
    f"run-records.{DIGEST.upper()}.0",
    f"run-records.{DIGEST[:-1]}.0",
    f"run-records.0{DIGEST}.0",
    f"run.records.{DIGEST}.0",
    f"run-records.{DIGEST}.{DIGEST}.0",
    f"run-records.{DIGEST}.",
    f"run-records.{DIGEST}",
    f".{DIGEST}.0",
    f"a\n.{DIGEST}.0\n",
    "run-records.0",
    "not-run",
    "é",
    ".",
)
EDGES = (0, 1, 2, 63, 64, 2**32, 2**62)


def charges() -> st.SearchStrategy[list[Charge]]:
    one = st.builds(
        Charge,
        round=st.sampled_from(EDGES),
        silo=st.sampled_from(EDGES),
        release=st.builds(
            SampledGaussian,
            noise_multiplier=st.sampled_from((0.5, 60.0)),
            sampler=st.sampled_from(("fixed", "poisson")),
            rate=st.sampled_from((0.1, 0.2)),
            neighbouring=st.just("replace_one"),
            unit=st.sampled_from(("record", "silo")),
        ),
        count=st.sampled_from((1, 2, 3, 2**62)),
        share=st.sampled_from(((0.0, 1.0), (0.0, 0.5))),
        noise_id=st.sampled_from(NOISE_IDS),
    )
    silos = st.lists(st.sampled_from(EDGES), min_size=1, max_size=4)
    alike = st.builds(lambda charge, of: [replace(charge, silo=silo) for silo in of], one, silos)
    return st.lists(alike, max_size=20).map(lambda lists: [charge for charges in lists for charge in charges])


def plain(made: list[Charge]) -> dict[tuple[object, ...], int]:
    """Each release once, with the largest count."""
    counts: dict[tuple[object, ...], int] = {}
    for one in made:
        key = plain_key(one)
        counts[key] = max(counts.get(key, 0), one.count)
    return counts


def plain_key(one: Charge) -> tuple[object, ...]:
    return one.round, one.silo, one.share, one.release, one.noise_id


def listed(counts: dict[tuple[object, ...], int]) -> list[Charge]:
    return [
        Charge(round=t, silo=silo, share=share, release=release, noise_id=noise_id, count=count)  # type: ignore[arg-type]
        for (t, silo, share, release, noise_id), count in counts.items()
    ]


CHARGE = Charge(round=1000, silo=1, release=RELEASE, count=300, noise_id=NOISE_IDS[0])


@settings(deadline=None)
@given(charges())
def test_batches_are_the_charges_one_by_one(made: list[Charge]) -> None:
    assert [replace(first, silo=silo) for first, silos in batches(made) for silo in silos] == made


@pytest.mark.parametrize(
    "other",
    [
        {"round": 1001},
        {"count": 299},
        {"share": (0.0, 0.5)},
        {"kind": "score"},
        {"noise_id": NOISE_IDS[1]},
        {"release": replace(RELEASE, noise_multiplier=59.0)},
    ],
    ids=str,
)
def test_a_batch_differs_in_nothing_but_silos(other: dict[str, Any]) -> None:
    silos = [replace(CHARGE, silo=silo, release=replace(RELEASE)) for silo in range(3)]
    assert list(batches(silos)) == [(silos[0], [0, 1, 2])]
    changed = replace(CHARGE, **other)
    assert [first for first, _ in batches([CHARGE, changed, CHARGE])] == [CHARGE, changed, CHARGE]


@settings(deadline=None)
@given(charges())
def test_a_tally_is_a_plain_dictionary(made: list[Charge]) -> None:
    counts, found = plain(made), Tally(made)
    assert Counter(found) == Counter(listed(counts)) and len(found) == len(counts)
    totals: Counter[tuple[object, ...]] = Counter()
    for (_, silo, share, release, _), count in counts.items():
        totals[silo, share, release] += count
    kinds = found.names.kinds
    assert {(silo, *kinds[kind]): count for (silo, kind), count in found.totals().items()} == totals
    named = {(t, noise_id) for t, _, _, _, noise_id in counts}
    rounds = Counter(t for t, _ in named)
    assert found.again() == {t: number for t, number in rounds.items() if number > 1}
    assert found.several() == {t for t, number in rounds.items() if number > 1}
    even = found.only(lambda entry: entry.round % 2 == 0)
    assert list(even) == [one for one in found if one.round % 2 == 0]
    for t in rounds:
        assert [*map(found.charge, found.of_round(t))] == [one for one in found if one.round == t]
    before, grown = list(found), found.copy()
    more = [*made, Charge(round=7, silo=7, release=RELEASE, count=7, noise_id="7")]
    assert sum(sum(grown.add(one, [one.silo])) for one in more) == 7  # what is known does not grow
    assert list(found) == before and len(grown) == len(counts) + 1


@settings(deadline=None, max_examples=30)
@given(st.lists(charges(), max_size=5), st.integers(0, 5))
def test_a_ledger_is_a_plain_dictionary_with_the_run_that_came_first(tmp_path_factory, batches, shared) -> None:
    path: Path = tmp_path_factory.mktemp("ledger") / "l"
    counts: dict[tuple[object, ...], int] = {}
    runs: dict[object, str] = {}
    with Ledger(path) as ledger:
        for n, batch in enumerate(batches):
            if n >= shared:
                ledger.begin_run({"noise": f"run {n % 3}"})
            ledger.append(batch)
            counts = plain([*listed(counts), *batch])
            for one in batch:
                runs.setdefault(plain_key(one), f"run {n % 3}" if n >= shared else "")
            assert [ledger.known(one) for one in batch] == [counts[plain_key(one)] for one in batch]
    heads = [json.loads(line)["check"] for line in path.read_bytes().splitlines()]
    for again in (ledger, Ledger.open(path, append=False)):
        assert Counter(again) == Counter(listed(counts)) and len(again) == len(counts)
        for run in ("", "run 0", "run 1", "run 2", "run 3"):
            expected = [one for one in again if runs[plain_key(one)] == run]
            assert again.of_run(run) == expected and len(again.tally_of_run(run)) == len(expected)
        for t, noise_id in {(one.round, one.noise_id) for one in again}:
            first = next(runs[key] for key in runs if (key[0], key[4]) == (t, noise_id))  # type: ignore[index]
            assert again.run_of(t, noise_id) == first
        assert again.run_of(3, NOISE_IDS[0]) is None
        assert all(map(again.holds, heads))
        head = heads[-1]
        for other in ("", f"{head[:-1]}x", f" {head}", f"0x{head}", head[1:], f"0{head}", f"{head}\n", "0" * 16):
            assert not again.holds(other)


@pytest.mark.parametrize("noise_id", NOISE_IDS)
def test_a_name_of_noise_is_what_it_was_and_like_no_other(noise_id: str) -> None:
    names = Names()
    numbers = {other: names.noise(other) for other in NOISE_IDS}
    assert names.noise_id(numbers[noise_id]) == noise_id
    assert [other for other, number in numbers.items() if number == numbers[noise_id]] == [noise_id]


def test_a_line_takes_some_hundred_bytes() -> None:
    number = 10_000
    tracemalloc.start()
    try:
        found = Tally(
            Charge(round=t, silo=0, release=RELEASE, count=1, noise_id=f"run.{t * 7919:032x}.0") for t in range(number)
        )
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(found) == number and held < 150 * number


def test_a_part_of_a_release_takes_nothing_back() -> None:
    whole = Charge(round=0, silo=0, release=RELEASE, count=3, noise_id="a")
    tally = Tally([whole])
    assert tally.add(replace(whole, count=1), [0]) == [0] and list(tally) == [whole]
    assert tally.add(replace(whole, count=5), [0, 1, 0, 1]) == [2, 5, 0, 0]


@pytest.mark.slow
def test_a_charge_takes_as_long_in_a_long_ledger_as_in_a_short_one() -> None:
    """Of a round in which each silo has a release of its own, after ten thousand of these, and when it is asked for."""

    def seconds(rounds: range) -> float:
        began = time.process_time()
        for t in rounds:
            for silo, release in enumerate(releases):
                one = Charge(round=t, silo=silo, release=release, count=1, noise_id=f"run.{t:032x}")
                tally.add(one, [silo])
        return time.process_time() - began

    releases = [replace(RELEASE, rate=0.1 + silo / 1000) for silo in range(10)]
    tally = Tally()
    first = seconds(range(1000))
    seconds(range(1000, 10_000))
    assert max(seconds(range(10_000, 11_000)), seconds(range(1000))) < 10 * first
    assert len(tally) == 110_000


@pytest.mark.slow
@settings(deadline=None)
@given(charges(), charges())
def test_a_ledger_in_memory_is_the_ledger_and_grows_alone(made: list[Charge], more: list[Charge]) -> None:
    ledger, whole = Ledger(facts={"a": 1}), Ledger()
    ledger.append(made)
    whole.append([*made, *more])
    before, other = list(ledger), ledger.in_memory()
    assert (list(other), other.facts, other.path) == (before, {"a": 1}, None)
    other.append(more)
    assert Counter(other) == Counter(whole) and list(ledger) == before
