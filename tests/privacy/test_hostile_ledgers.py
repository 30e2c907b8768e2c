"""Whatever a file holds, a ledger says of it what a reader says that keeps plain dictionaries."""

from __future__ import annotations

import hashlib
import json
import math
import random
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from dpfl_plugin.errors import LedgerError
from dpfl_plugin.privacy.events import CHARGE_KINDS, Charge, SampledGaussian
from dpfl_plugin.privacy.ledger import Ledger

LEDGERS = 100  # a seed
DIGEST = "fb31417c06eda1316504bbe2c810b528"
NOISE_IDS = [
    f"r-x.{DIGEST}.0",
    f"r-x.{'0' * 32}.0",
    f"r-x.{'f' * 32}.0",
    f"r-y.{DIGEST}.0",
    "plain",
    "é☃",
    ".",
    "a\n.b",
]
ROUNDS = [*range(6), 2**31, 2**63 - 1, 2**63, 2**100]
SILOS = [0, 1, 2, 7, 2**31, 2**32 - 1, 2**32]
WRONG = [2.5, None, "x", "é", [1], {}, math.nan, math.inf, -3, 0, 2**31, 2**70, True, [1, 0], [-1, 0.5], 10**400]
RELEASE = {"noise_multiplier": 60.0, "sampler": "fixed", "rate": 0.2, "neighbouring": "replace_one"}
RUNS = ("", "a", "b")


class Plain:
    """The same reader without a thought for memory. What it cannot understand is any of three errors."""

    def __init__(self) -> None:
        self.counts: dict[tuple[Any, ...], Any] = {}
        self.kinds: dict[tuple[Any, ...], Any] = {}
        self.run_of: dict[Any, str] = {}
        self.notes: list[Any] = []
        self.runs: list[str] = []

    def take(self, content: Any, number: int) -> None:
        if (number == 1) != ("ledger" in content):
            raise ValueError
        if "ledger" in content:
            self.facts = content["facts"]
            if content["ledger"] != 1:
                raise ValueError
        elif "note" in content:
            self.notes.append(content["note"])
        elif "run" in content:
            if not self.runs:
                self.run_of = {key[-1]: "" for key in self.counts}
            self.runs.append(content["run"]["noise"])
        else:
            self._charge(content)

    def _charge(self, content: Any) -> None:
        (first, last), release, what = content["share"], SampledGaussian(**content["release"]), content.get("kind")
        hash((first, last, release))
        numbers = (first, last, release.noise_multiplier, release.rate)
        whole = type(content["round"]) is type(content["count"]) is int and content["round"] >= 0 < content["count"]
        if not (whole and all(map(math.isfinite, numbers)) and 0 <= first < last <= 1):
            raise ValueError
        if what is not None and what not in CHARGE_KINDS:
            raise ValueError
        groups = [
            (max(0, high - low + 1), max(1, len(ids))) for ranges, ids in content["silos"] for low, high in ranges
        ]
        if sum(silos * ids for silos, ids in groups) > 2**24:
            raise ValueError
        for ranges, noise_ids in content["silos"]:
            silos = [silo for low, high in ranges for silo in range(low, high + 1)]
            names = set(noise_ids) if silos else set[Any]()  # names that are no keys are refused before anything counts
            count = content["count"]
            for silo in silos:
                for noise_id in noise_ids:
                    self._count((content["round"], silo, (first, last), release, noise_id), count, what)
            for noise_id in names if self.runs else ():
                self.run_of.setdefault(noise_id, self.runs[-1])

    def _count(self, key: tuple[Any, ...], count: Any, what: Any) -> None:
        known = self.counts.get(key, 0)
        if known < count:
            self.counts[key] = count
        if key in self.counts and (what == "round" or known == 0 or (what is not None)):
            self.kinds[key] = what if what != "round" or self.kinds.get(key) is None else self.kinds[key]

    def charges(self) -> list[tuple[Any, ...]]:
        return [(*key, count) for key, count in self.counts.items()]


def read(data: bytes, path: Path) -> Plain | str:
    """What is in a file, or why that is not known, as far as its error says something of its own."""
    found, check, number, end = Plain(), "", 0, data.rfind(b"\n") + 1
    lines = data[:end].split(b"\n")[:-1] + (
        [data[end:]] if re.search(rb',"check":"[0-9a-f]{16}"\}', data[end:]) else []
    )

    def damaged(what: str) -> str:
        rounds = [key[0] for key in found.counts if isinstance(key[0], int | float)]
        upto = f" and prove {len(found.counts)} charges up to round {max(rounds)}" if rounds else ""
        proven = f"Lines 1 to {number - 1} are intact" if number > 1 else "Nothing in it is proven"
        return f"{path}, line {number}: {what}| {proven}{upto}; later charges"

    for number, line in enumerate(lines, 1):
        whole = re.fullmatch(rb'(.*),"check":"([0-9a-f]{16})"\}', line, re.DOTALL)
        if not whole:
            return damaged("it does not end in a checksum.")
        body = whole[1] + b"}"
        if hashlib.sha256(check.encode() + body).hexdigest()[:16] != whole[2].decode():
            return damaged("its checksum is wrong: it, or the order of the lines, was changed.")
        check = whole[2].decode()
        try:
            found.take(json.loads(body.decode()), number)
        except (ValueError, KeyError, TypeError, OverflowError):
            return damaged("it cannot be understood")
    return found if number else f"{path} holds no complete first line"


def made(rng: random.Random) -> bytes:
    """A ledger of random lines, some of which say what no run would write, and whose file somebody was at."""
    odd = rng.choice((0.0, 0.005, 0.03))

    def or_wrong(value: Any) -> Any:
        return value if rng.random() >= odd else rng.choice(WRONG)

    def ranges() -> list[Any]:
        lows = [rng.choice(SILOS) for _ in range(rng.choice((0, 1, 1, 1, 2)))]
        pairs = [[low, low + rng.randint(-1, 3)] for low in lows]
        return [
            pair if rng.random() >= odd else [rng.choice((None, "x", 2.5, [1], -(2**40))), pair[1]] for pair in pairs
        ]

    def charge() -> dict[str, Any]:
        release = RELEASE | {"noise_multiplier": rng.choice((1.0, 60.0, 2))} | ({"unit": "record"} if odd else {})
        line: dict[str, Any] = {
            "round": or_wrong(rng.choice(ROUNDS)),
            "share": or_wrong(rng.choice(([0.0, 1.0], [0.0, 0.5], [0, 1]))),
            "release": or_wrong(release | ({"extra": 1} if rng.random() < odd else {})),
            "count": or_wrong(rng.choice((1, 1, 1, 2, 300, 2**31))),
            "silos": [
                [ranges(), or_wrong(rng.sample(NOISE_IDS, rng.choice((0, 1, 1, 1, 2))))]
                for _ in range(rng.choice((1, 2)))
            ],
        }
        if rng.random() < 0.7:
            line["kind"] = or_wrong(rng.choice((*CHARGE_KINDS, *["round"] * 4)))
        if rng.random() < odd:
            line.pop(rng.choice(list(line)))
        return line | ({"more": {"é": [1]}} if rng.random() < 0.1 else {})

    def line() -> dict[str, Any]:
        which = rng.random()
        if which < 0.05:
            return {"note": "é"}
        return {"run": {"noise": rng.choice("ab")}} if which < 0.15 else charge()

    contents = [{"ledger": or_wrong(1), "facts": {"é": 1}}, *(line() for _ in range(rng.randint(0, 15)))]
    bodies = [json.dumps(one, sort_keys=True, ensure_ascii=rng.random() < 0.8).encode() for one in contents]
    if rng.random() < 0.2:
        bodies.insert(
            rng.randint(1, len(bodies)), rng.choice([*bodies, b'{"note":"x"} {}', b"[]", b"\xff}", b' {"note":1}'])
        )
    check, lines = "", []
    for body in bodies:
        check = hashlib.sha256(check.encode() + body).hexdigest()[:16]
        lines.append(body[:-1] + b',"check":"' + check.encode() + b'"}\n')
    one, other, what = rng.randrange(len(lines)), rng.randrange(len(lines)), rng.random()
    if what < 0.05:
        lines[one], lines[other] = lines[other], lines[one]
    elif what < 0.1:
        lines.insert(one, lines[other])
    elif what < 0.15:
        del lines[one]
    elif what < 0.2:
        place = rng.randrange(len(lines[one]))
        lines[one] = lines[one][:place] + bytes([lines[one][place] ^ 1 << rng.randrange(8)]) + lines[one][place + 1 :]
    data = b"".join(lines)
    return data[: len(data) - rng.randint(1, 200)] if rng.random() < 0.15 else data


def rows(charges: Any) -> list[tuple[Any, ...]]:
    return [(c.round, c.silo, c.share, c.release, c.noise_id, c.count) for c in charges]


def compare(found: Ledger, plain: Plain) -> None:
    """All that a ledger says of its charges."""
    tally, names = found.tally, found.tally.names
    assert (found.facts, [run["noise"] for run in found.runs]) == (plain.facts, plain.runs)
    assert rows(found) == plain.charges() and len(found) == len(plain.counts)
    assert [repr(one.count) for one in found] == list(map(repr, plain.counts.values()))  # no number is another one's
    assert [one.kind for one in found] == [plain.kinds[key] for key in plain.counts]
    assert [found.known(one) for one in found] == list(plain.counts.values())
    totals: defaultdict[Any, Any] = defaultdict(int)
    named: defaultdict[Any, set[Any]] = defaultdict(set)
    for (round_, silo, share, release, noise_id), count in plain.counts.items():
        totals[silo, share, release] += count
        named[round_].add(noise_id)
    assert [((silo, *names.kinds[kind]), n) for (silo, kind), n in tally.totals().items()] == list(totals.items())
    assert tally.several() == {round_ for round_, noise_ids in named.items() if len(noise_ids) > 1}
    assert tally.again() == {round_: len(noise_ids) for round_, noise_ids in named.items() if len(noise_ids) > 1}
    run_of = plain.run_of if plain.runs else {key[-1]: "" for key in plain.counts}
    assert {noise_id: found.run_of(noise_id) for noise_id in NOISE_IDS} == {one: run_of.get(one) for one in NOISE_IDS}
    for run in RUNS:
        assert rows(found.of_run(run)) == [row for row in plain.charges() if run_of[row[4]] == run]
    part = tally.only(lambda entry: tally.kind(entry) == "round" and entry.silo < 2)
    kept = [key for key in plain.counts if plain.kinds[key] == "round" and key[1] < 2]
    assert rows(part) == [(*key, plain.counts[key]) for key in kept] and len(part) == len(kept) and part.only_rounds
    assert [part.count(part.key(one)) for one in found] == [
        count if key in kept else 0 for key, count in plain.counts.items()
    ]


@pytest.mark.parametrize("seed", range(4))
def test_a_ledger_is_read_as_by_plain_dictionaries(tmp_path: Path, seed: int) -> None:
    rng, path, verdicts = random.Random(seed), tmp_path / "l", Counter[str]()
    for _ in range(LEDGERS):
        data = made(rng)
        path.write_bytes(data)
        plain = read(data, path)
        if isinstance(plain, str):
            with pytest.raises(LedgerError) as error:
                Ledger.open(path, append=False)
            parts = plain.split("|")
            assert str(error.value).startswith(parts[0]) and parts[-1] in str(error.value)
            verdicts[parts[0].partition(": ")[2][:20]] += 1
            continue
        compare(Ledger.open(path, append=False), plain)
        with Ledger.open(path) as grown:
            compare(grown, plain)
            release = SampledGaussian(**RELEASE)  # type: ignore[arg-type]
            more = [
                Charge(round=t, silo=silo, release=release, count=count, noise_id=noise_id)
                for t in (0, 7)
                for silo in (1, 2**32)
                for noise_id in NOISE_IDS[:2]
                for count in (2, 2**40)
            ]
            before, part = rows(grown), grown.tally.only(lambda entry: entry.silo < 2)
            kept = rows(part)
            grown.append(more)
            assert rows(part) == kept and [row[:5] for row in rows(grown)][: len(before)] == [row[:5] for row in before]
            for one in more:
                key = (one.round, one.silo, one.share, one.release, one.noise_id)
                plain._count(key, one.count, "round")
                if plain.runs:
                    plain.run_of.setdefault(one.noise_id, plain.runs[-1])
            compare(grown, plain)
        verdicts["read"] += 1
    assert verdicts["read"] > LEDGERS / 3 and len(verdicts) >= 3, verdicts
