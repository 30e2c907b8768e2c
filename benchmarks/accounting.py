"""`python -m benchmarks.accounting`: how long long runs take to account for, and in how much memory.

Ledgers of a million lines as real runs write them, read by `dpfl account`; and 100,000 rounds, planned by `dpfl account
CONFIG` or checked against a budget one after the other. Writes the tables in docs/benchmarks.md. Times are of the
processor, so that what else the machine does counts less.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from benchmarks.pages import put
from benchmarks.table import table
from dpfl_plugin.privacy.events import Charge, SampledGaussian
from dpfl_plugin.privacy.ledger import Ledger

PARTS: Final = ("long ledgers", "many rounds")
LINES: Final = 10**6
ROUNDS: Final = 10**5
RECORDS: Final = 100  # of a silo
RATE: Final = 0.2
NOISE: Final = 40.0
SMALL: Final = 10  # lines of a ledger that shows what a process takes by itself
CRASHES: Final = 20  # sessions that began again with fresh noise, and released their first round twice
CONFIG: Final[dict[str, Any]] = {
    "name": "long",
    "data": {"dataset": {"name": "synthetic", "num_features": 4, "num_classes": 3, "records_per_silo": RECORDS}},
    "algorithm": {"name": "fedavg", "local_steps": 1, "local_lr": 0.1},
    "privacy": {"clip_norm": 1.0, "noise_multiplier": NOISE, "record_rate": RATE, "delta": 1e-5},
}
SAMPLERS: Final[dict[str, dict[str, Any]]] = {
    "fixed": {},
    "poisson": {"sampler": "poisson"},
    "full": {"sampler": "full", "record_rate": None},
}


def charges(rounds: int, silos: int) -> Iterator[list[Charge]]:
    """Round by round what silos with different numbers of records are charged, with ids of fresh noise.

    A round that is run again after a crash has another id.
    """
    releases = [
        SampledGaussian(noise_multiplier=NOISE, sampler="fixed", rate=RATE * RECORDS / n, neighbouring="replace_one")
        for n in _sizes(silos)
    ]
    for n in range(rounds):
        session = n * (CRASHES + 1) // rounds
        attempts = [session] if n == 0 or (n - 1) * (CRASHES + 1) // rounds == session else [session - 1, session]
        for attempt in attempts:
            noise_id = f"{_digest('run')}.{_digest(f'{n} {attempt}')}"
            yield [
                Charge(round=n, silo=silo, release=release, count=1, noise_id=noise_id)
                for silo, release in enumerate(releases)
            ]


def _sizes(silos: int) -> list[int]:
    return [RECORDS + 10 * silo for silo in range(silos)]


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def write_run(folder: Path, lines: int, silos: int) -> Path:
    """The folder of a run, of which nothing but its ledger and its configuration is left."""
    rounds = lines // silos
    folder.mkdir(parents=True)
    facts = {"name": "long", "noise_multiplier": NOISE, "num_records": _sizes(silos), "run": "0" * 12}
    with Ledger(folder / "ledger.jsonl", facts) as ledger:
        for batch in charges(rounds, silos):
            ledger.append(batch)
    config = {**CONFIG, "rounds": rounds, "data": {**CONFIG["data"], "num_silos": silos}}
    # Batches of so many records, at silos of different sizes.
    config["privacy"] = {**CONFIG["privacy"], "record_rate": None, "batch_size": int(RATE * RECORDS)}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder


def write_shared(path: Path, lines: int, silos: int) -> Path:
    """A ledger that two runs share."""
    facts = {"data_sha256": "0" * 64, "num_silos": silos, "delta": 1e-5, "drawn": False, "draws_decided": False}
    with Ledger(path, {"shared": _digest("shared")}) as ledger:
        for run in ("first", "second"):
            more = {"noise": run, "name": run, "largest_rate": RATE, "started": "2026-01-01T00:00:00Z"}
            ledger.begin_run({**facts, **more})
            for batch in charges(lines // silos // 2, silos):
                ledger.append([_renamed(one, run) for one in batch])
    return path


def _renamed(one: Charge, run: str) -> Charge:
    noise_id = one.noise_id.replace(_digest("run"), _digest(run))
    return Charge(round=one.round, silo=one.silo, release=one.release, count=one.count, noise_id=noise_id)


def measured(*words: object) -> tuple[float, float]:
    """(seconds of the processor, peak MiB) of a command with the same Python."""
    null = subprocess.DEVNULL
    process = subprocess.Popen([sys.executable, *map(str, words)], stdout=null, stderr=subprocess.PIPE)
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{words} ended with {process.returncode}: {said.decode()[-2000:]}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def ledgers(folder: Path, lines: int) -> str:
    """What `dpfl account` of long ledgers takes, and what it takes of short ones."""
    rows = []
    for what, silos, write in (
        ("FOLDER, one line a round", 1, write_run),
        ("FOLDER, 10 silos, ten lines a round", 10, write_run),
        ("FILE, two runs, one line a round", 1, write_shared),
    ):
        with tempfile.TemporaryDirectory() as short:
            small = measured("-m", "dpfl_plugin", "account", write(Path(short) / what, SMALL * silos, silos))
        path = folder / what if (folder / what).exists() else write(folder / what, lines, silos)
        seconds, peak = measured("-m", "dpfl_plugin", "account", path)
        rows.append([what, f"{seconds:.1f}", f"{peak:.0f}", f"{small[0]:.1f}", f"{small[1]:.0f}"])
        print(*rows[-1], file=sys.stderr)
    return table([f"`dpfl account`, {lines:,} lines", "s", "MiB", "s, short one", "MiB, short one"], rows)


def planning(folder: Path, rounds: int) -> str:
    """What `dpfl account CONFIG` takes, and the budget's checks while a run trains, by sampler and participation."""
    rows = []
    for sampler, privacy in SAMPLERS.items():
        for rate in (1.0, 0.5):
            config = folder / f"{sampler} {rate}.yaml"
            for name, number in (("short", 10), ("long", rounds)):
                values = {**CONFIG, "rounds": number, "silo_rate": rate, "privacy": {**CONFIG["privacy"], **privacy}}
                values["data"] = {**CONFIG["data"], "num_silos": 10}
                config.with_stem(name).write_text(yaml.safe_dump(values))
            short, long = (measured("-m", "dpfl_plugin", "account", config.with_stem(n))[0] for n in ("short", "long"))
            took = [_checked(config.with_stem("long"), view, rounds) for view in ("server", "third_party")]
            seconds = [one["checking"] for one in took] + [max(one["charging"] for one in took)]
            rows.append([f"{sampler}, {rate:.0%}", f"{long:.1f}", f"{short:.1f}", *(f"{one:.1f}" for one in seconds)])
            print(*rows[-1], file=sys.stderr)
    header = [f"{rounds:,} rounds", "`dpfl account`, s", "of 10 rounds, s", "checks, server, s", "third party, s"]
    return table([*header, "charging 10 silos, s"], rows)


def _checked(config: Path, view: str, rounds: int) -> dict[str, float]:
    """Seconds of the processor that the checks of a budget take which all rounds fit, and those of charging them."""
    words = [sys.executable, "-m", "benchmarks.accounting", "--checks", config, view, rounds]
    found = subprocess.run([*map(str, words)], check=True, stdout=subprocess.PIPE)
    return {name: float(value) for name, value in json.loads(found.stdout).items()}


def checks(config: Path, view: str, rounds: int) -> dict[str, float]:
    """As `_checked`, in this process."""
    import torch

    from dpfl_plugin.config.load import load
    from dpfl_plugin.runs.forecast import forecast

    chosen = load(config, [f"privacy.budget_view={view}", "privacy.epsilon=1000"]).variants[0].config
    ahead = forecast(chosen, config.parent)
    account, planner = ahead.account(NOISE), ahead.planner
    server = planner.algorithm.init_server(torch.zeros(1), planner.setting)
    checking = charging = 0.0
    for n in range(rounds):
        plan = planner.plan(server, n, account.eligible())
        assert plan is not None
        began = time.process_time()
        assert account.affords(n, plan)
        account.begin_round(n, plan)
        checking += time.process_time() - began
        made = account.charges(n, plan)
        began = time.process_time()
        account.append(made)
        charging += time.process_time() - began
    return {"checking": checking, "charging": charging}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accounting", description=__doc__)
    parser.add_argument("--lines", type=int, default=LINES, help="of the ledgers")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="that are planned")
    parser.add_argument("--folder", type=Path, help="where ledgers are kept, and read again; default: nowhere for long")
    parser.add_argument("--part", choices=["ledgers", "planning"], help="measure this one only")
    parser.add_argument("--dry", action="store_true", help="leave docs/benchmarks.md as it is")
    parser.add_argument("--checks", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.checks:
        config, view, rounds = options.checks
        print(json.dumps(checks(Path(config), view, int(rounds))))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        if options.part != "planning":
            _show("long ledgers", ledgers(folder, options.lines), write=not options.dry)
        if options.part != "ledgers":
            _show("many rounds", planning(folder, options.rounds), write=not options.dry)


def _show(part: str, text: str, *, write: bool) -> None:
    print(text)
    if write:
        put("docs/benchmarks.md", part, text)


def kept(page: Path) -> str:
    """The parts as they stand on the page, marks included."""
    text = page.read_text() if page.exists() else ""
    found = [re.search(f"<!-- {part}: begin -->.*<!-- {part}: end -->", text, re.DOTALL) for part in PARTS]
    parts = zip(PARTS, found, strict=True)
    return "\n\n".join(one.group() if one else f"<!-- {part}: begin -->\n<!-- {part}: end -->" for part, one in parts)


if __name__ == "__main__":
    main()
