"""Check a ledger without dpfl: its chain of checksums, its events, and what they cost by dp-accounting.

    pip install dp-accounting==0.6.0
    python tools/verify_ledger.py runs/my-run/ID/ledger.jsonl --delta 1e-5

Prints, for each silo (of each run, in a shared ledger), how many releases the server saw and their epsilon by Renyi
divergences. This is looser than what `dpfl account` states, and never smaller than the truth. docs/ledger.md has the
format. Runs of a shared ledger that may have been chosen by looking at others have a larger total than their sum by
Renyi divergences: this script states none. It exits with 1 where the file is not what was written.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import logging
import math
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import dp_accounting
from dp_accounting.rdp import RdpAccountant

Release = tuple[tuple[str, Any], ...]
Share = tuple[float, float]
RELATIONS = {
    "replace_one": dp_accounting.NeighboringRelation.REPLACE_ONE,
    "add_or_remove": dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
}


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of all whole lines; raises ValueError at the first that is not what was written."""
    previous = ""
    data = path.read_bytes()
    whole, _, rest = data.rpartition(b"\n")
    for number, line in enumerate(whole.split(b"\n"), 1):
        match = re.fullmatch(rb'(.*),"check":"([0-9a-f]{16})"\}', line, re.DOTALL)
        if match is None:
            raise ValueError(f"line {number} does not end in a checksum")
        body, check = match.group(1) + b"}", match.group(2).decode()
        if hashlib.sha256(previous.encode() + body).hexdigest()[:16] != check:
            raise ValueError(f"line {number}: its checksum is wrong: it, or the order of the lines, was changed")
        previous = check
        yield json.loads(body)
    if rest:
        print(f"{len(rest)} bytes of a last line were cut off: nothing that it covers had left.")
    print(f"last checksum: {previous}")


def releases(path: Path) -> dict[str, dict[int, Counter[tuple[Release, Share]]]]:
    """{run: {silo: how many releases of each mechanism on each share}}; the same noise counts once."""
    known: dict[tuple[Any, ...], tuple[str, int]] = {}
    run = ""
    for number, line in enumerate(lines(path), 1):
        if number == 1:
            shared = isinstance(line["facts"].get("shared"), str)
            print(f"ledger of schema {line['ledger']}, {'that runs share' if shared else 'of one run'}")
        elif "run" in line:
            run = line["run"]["noise"]
        elif "note" in line:
            print(f"note: {line['note']}")
        else:
            mechanism = tuple(sorted(line["release"].items()))
            for ranges, names in line["silos"]:
                silos = [silo for first, last in ranges for silo in range(first, last + 1)]
                for key in itertools.product(silos, [mechanism], [tuple(line["share"])], [line["round"]], names):
                    first_run, count = known.get(key, (run, 0))
                    known[key] = first_run, max(count, line["count"])
    made: dict[str, dict[int, Counter[tuple[Release, Share]]]] = defaultdict(lambda: defaultdict(Counter))
    for (silo, mechanism, share, _, _), (of_run, count) in known.items():
        made[of_run][silo][mechanism, share] += count
    return made


def event(release: dict[str, Any], count: int) -> dp_accounting.DpEvent:
    """What dp-accounting calls so many releases."""
    gaussian = dp_accounting.GaussianDpEvent(release["noise_multiplier"])
    match release["sampler"]:
        case "full":
            single = gaussian
        case "poisson":
            single = dp_accounting.PoissonSampledDpEvent(release["rate"], gaussian)
        case "fixed":
            rate = Fraction(release["rate"]).limit_denominator(10**6)
            rate = rate if rate >= Fraction(release["rate"]) else rate + Fraction(1, 10**6)  # never a smaller one
            single = dp_accounting.SampledWithoutReplacementDpEvent(rate.denominator, rate.numerator, gaussian)
        case "cyclic":  # each record is in one release of a pass
            single, count = gaussian, math.ceil(count * release["rate"] - 1e-9)
        case other:
            raise ValueError(f"sampler {other!r} is not known here")
    return dp_accounting.SelfComposedDpEvent(single, count)


def epsilon(made: Counter[tuple[Release, Share]], delta: float) -> float:
    """Of one silo: a record is in one place of its order, so of the shares those count that hold it."""
    ends = sorted({end for _, share in made for end in share})
    worst = 0.0
    for first, last in itertools.pairwise(ends):
        here = [(dict(release), n) for (release, share), n in made.items() if share[0] <= first and last <= share[1]]
        relations = {release["neighbouring"] for release, _ in here}
        if len(relations) > 1:
            raise ValueError("several neighbouring relations: no single epsilon bounds them")
        for relation in relations:
            accountant = RdpAccountant(neighboring_relation=RELATIONS[relation])
            for release, count in here:
                accountant.compose(event(release, count))
            worst = max(worst, accountant.get_epsilon(delta))
    return worst


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ledger", type=Path)
    parser.add_argument("--delta", type=float, default=1e-5)
    arguments = parser.parse_args()
    logging.getLogger("absl").setLevel(logging.ERROR)  # it warns of orders that it leaves out
    try:
        for run, silos in releases(arguments.ledger).items():
            print(f"run {run}:" if run else "run:")
            for silo, made in sorted(silos.items()):
                print(
                    f"  silo {silo}: {sum(made.values())} releases, "
                    f"epsilon at most {epsilon(made, arguments.delta):.4f} at delta {arguments.delta:g}"
                )
    except (OSError, ValueError, KeyError) as error:
        print(f"{arguments.ledger}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
