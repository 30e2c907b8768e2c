"""Figures and tables of papers: what there is, and repeating them; `dpfl papers` does the same."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import operator
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import dpfl_plugin
from dpfl_plugin import own_folders
from dpfl_plugin.api.paper_data import check_readable
from dpfl_plugin.api.progress import Silent
from dpfl_plugin.api.running import carried_out, import_for_runs, place_of
from dpfl_plugin.config.schema import Config
from dpfl_plugin.config.sweep import Expansion, Row, config_of
from dpfl_plugin.errors import DpflError, TrainingError, require_argument
from dpfl_plugin.runs.folder import to_json, write_atomic
from dpfl_plugin.sweeps import manifest, state
from dpfl_plugin.sweeps.manifest import Sweep
from dpfl_plugin.sweeps.supervisor import DONE, FAILED, INTERRUPTED, Stop, Supervisor
from papers import catalog, pages, pictures
from papers import numbers as numbers_of
from papers.items import ALL, EXCESS, QUICK, Extent, Item, Paper, Part
from papers.lengths import foreseen
from papers.numbers import Code, Made, Numbers

Tell = Callable[[str], None]
FEW: Final = 4
CPU: Final = "cpu"  # of all configurations
COMPUTING: Final = ("papers.", "papers.plans.", "dpfl_plugin.tuning.")
DRAWING: Final = ("pages", "pictures", "pictures_of_tables", "tables", "verdicts", "fewer", "index", "lengths")
"""Rooms of which a table that takes no run may use something."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A figure or table that can be repeated.

    Attributes:
        seconds, quick_seconds: of processors, for all of its runs and for quick ones: measured, or foreseen from what
            is measured; None where nothing is.
        numbers: "all", "1 of 3 seeds", "quick" or "none": which come with the package; "computed" where it takes no
            run.
        current: whether the code that made them is still what it was; None without numbers.
        changed: the modules of the package that are not.
    """

    paper: str
    kind: str
    number: str
    title: str
    runs: int
    quick_runs: int
    seconds: float | None
    quick_seconds: float | None
    numbers: str
    current: bool | None
    changed: list[str]


def papers() -> list[Listed]:
    """All figures and tables of papers that can be repeated here, see `reproduce`."""
    return [_listed(paper, item) for paper in catalog.papers() for item in paper.items]


def _listed(paper: Paper, item: Item) -> Listed:
    numbers = numbers_of.kept(paper.name, item)
    what = "computed" if item.computed is not None else "none" if numbers is None else _extent_of(item, numbers)
    whole, quick = foreseen(paper, item)
    changed = [] if numbers is None else numbers.changed()
    current = None if numbers is None else not changed
    runs, few = (sum(len(part.expansion(extent).rows) for part in item.ran(extent)) for extent in (ALL, QUICK))
    return Listed(paper.name, item.kind, item.number, item.title, runs, few, whole, quick, what, current, changed)


def _extent_of(item: Item, numbers: Numbers) -> str:
    return "quick" if numbers.quick else numbers_of.of_seeds(item, numbers) if numbers.seeds else "all"


@dataclass(frozen=True, slots=True)
class Reproduced:
    """A figure or table that was repeated.

    Attributes:
        numbers: None where runs are missing, and of what is computed without runs.
        missing: how many runs are not finished.
        text: theirs, ours, and whether they agree, in Markdown.
        page, picture: files that were written.
    """

    paper: str
    item: str
    numbers: Numbers | None
    missing: int
    text: str
    page: Path | None
    picture: Path | None


def reproduce(
    paper: str,
    *,
    figure: int | str | None = None,
    table: int | str | None = None,
    quick: bool = False,
    seeds: Sequence[int] = (),
    out: str | Path = "runs/papers",
    data: str | Path | None = None,
    jobs: int = 1,
    device: str | None = None,
    tell: Tell | None = None,
) -> list[Reproduced]:
    """Repeat a figure or table of a paper, or all of them; what is finished in ``out`` is not run again.

    Args:
        paper: a name of `papers`. figure, table: its number; both None: everything.
        quick: fewer seeds, places or rounds: minutes, the direction of the result.
        seeds: with all rounds, of these of its seeds only; those of another call with the same ``out`` are not run
            again when all are asked for. Empty: all.
        out: folder of runs, numbers (JSON), pages and pictures.
        data: folder of data files, else $DPFL_DATA, else ~/.cache/dpfl.
        jobs: runs at the same time. Several are processes that are forked from this one: do it before torch computes.
        device: torch's, that all runs compute on, e.g. "cuda", which ``jobs`` share; None: "cpu". Runs of another
            device are other runs, and not gone on with.
        tell: is told how far it is.

    Raises:
        ArgumentError: there is no such paper, figure, table or seed.
        ConfigError: the device cannot be used here; or, with DataError, as `dpfl.train`. TrainingError: runs failed.
        KeyboardInterrupt: what is done is saved.
    """
    of = catalog.find(paper)
    wanted = catalog.items(of, _number(figure), _number(table))
    extents = [_extent(item, quick, seeds, device) for item in wanted]
    if device is not None:
        _check_device(device)
    with _data(data):
        check_readable(_left(zip(wanted, extents, strict=True), folder_of(of, Path(out))))
        return [
            _reproduced(of, item, extent, Path(out), jobs, tell or (lambda text: None))
            for item, extent in zip(wanted, extents, strict=True)
        ]


def _left(items: Iterable[tuple[Item, Extent]], folder: Path) -> Iterator[tuple[Config, Path]]:
    """The configuration of every run that is not finished, and where its paths start."""
    for item, extent in items:
        for part in item.ran(extent):
            sweep = manifest.plan(part.expansion(extent), part.path, folder)
            for row in sweep.rows:
                if not state.finished(sweep.folder_of(row)):
                    yield config_of(sweep.base, row, sweep.runs), sweep.source.parent


def _number(given: int | str | None) -> str | None:
    return None if given is None else str(given)


def _check_device(device: str) -> None:
    """In a process of its own: CUDA that has begun here would be of no use to runs that are forked.

    Raises:
        ConfigError: it cannot be used.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        pool.submit(_use_device, device).result()


def _use_device(device: str) -> None:
    from dpfl_plugin.runs.models import usable_device  # imports torch

    usable_device(device)


def _extent(item: Item, quick: bool, seeds: Sequence[int], device: str | None) -> Extent:
    """
    Raises:
        ArgumentError: the item does not have these seeds, or quick runs were asked for, which have their own.
    """
    there = None if device == CPU else device
    if not seeds or item.computed is not None:
        return Extent(quick, device=there)
    require_argument(not quick, "seeds", list(seeds), "be left out where quick is set: quick runs have their own")
    known = ", ".join(map(str, item.seeds))
    require_argument(
        set(seeds) <= set(item.seeds), "seeds", list(seeds), f"be some of those of {item.heading}, which are {known}"
    )
    some = tuple(seed for seed in item.seeds if seed in seeds)
    return Extent(seeds=() if some == item.seeds else some, device=there)


@contextlib.contextmanager
def _data(folder: str | Path | None) -> Iterator[None]:
    """Have data files looked for in a folder, by what is forked, too."""
    before = os.environ.get("DPFL_DATA")
    if folder is not None:
        os.environ["DPFL_DATA"] = str(Path(folder).absolute())
    try:
        yield
    finally:
        if folder is not None:
            os.environ.pop("DPFL_DATA")
            if before is not None:
                os.environ["DPFL_DATA"] = before


def folder_of(paper: Paper, out: Path) -> Path:
    """Where a paper's sweeps are: items share runs, and `dpfl sweep --out` with it goes on with the same."""
    return out / paper.name


def _reproduced(paper: Paper, item: Item, extent: Extent, out: Path, jobs: int, tell: Tell) -> Reproduced:
    numbers: Numbers | None
    if item.computed is not None:
        tell(f"{item.heading}: computed without a run; up to a few minutes")
        numbers, missing = _computed(paper, item), 0
    else:
        numbers, missing = _ran(paper, item, extent, folder_of(paper, out), jobs, tell)
    if numbers is None:
        return Reproduced(paper.name, item.name, None, missing, f"{missing} runs are missing", None, None)
    stem = numbers.write(out).with_suffix("")
    picture = stem.with_suffix(".png") if pictures.has_picture(item, numbers) else None
    if picture is not None:
        pictures.draw(picture, paper, item, numbers)
    text = pages.section(paper, item, numbers, f"{stem.name}.png", with_key=True)
    write_atomic(stem.with_suffix(".md"), f"# {paper.reference}\n\n{text}\n")
    shown = "\n\n".join(filter(None, (pages.outcome(item, numbers), pages.key(item, numbers))))
    return Reproduced(paper.name, item.name, numbers, 0, shown, stem.with_suffix(".md"), picture)


def _computed(paper: Paper, item: Item) -> Numbers:
    assert item.computed is not None
    table = item.computed()
    # What is imported for a table, of papers too: it may compute it.
    drawing = tuple(f"papers.{name}" for name in DRAWING)
    loaded = [name for name in sys.modules if name.startswith(COMPUTING) and name not in drawing]
    own = [name.removeprefix("dpfl_plugin.") for name in loaded]
    code = numbers_of.code_here(*own, imported=True)
    version = dpfl_plugin.__version__
    return Numbers(paper.name, item.name, False, version, [*code.packages], "", [], table, code.listed())


def _ran(paper: Paper, item: Item, extent: Extent, folder: Path, jobs: int, tell: Tell) -> tuple[Numbers | None, int]:
    """The numbers of all runs, those that are not finished having been run; or how many are missing."""
    sweeps = [planned(part, extent, folder) for part in item.ran(extent)]
    for part, (sweep, _) in zip(item.ran(extent), sweeps, strict=True):
        _run_all(f"{item.heading}, {part.title}", sweep, jobs, tell)
    if item.measure == EXCESS:
        tell(f"{item.heading}: looks for the least training loss there is, once for each data set; minutes")
    numbers, missing = _gathered(paper, item, extent, sweeps)
    return numbers, missing


def sweeps_of(
    paper: str,
    *,
    figure: str | None,
    table: str | None,
    quick: bool,
    seeds: Sequence[int] = (),
    device: str | None = None,
    out: Path,
) -> list[tuple[Path, list[str], Path]]:
    """(file, settings, folder) of every sweep, as `dpfl sweep` takes them.

    Raises:
        ArgumentError: there is no such paper, figure, table or seed.
    """
    of = catalog.find(paper)
    extents = [(item, _extent(item, quick, seeds, device)) for item in catalog.items(of, figure, table)]
    return [
        (part.path, part.given(extent), folder_of(of, out)) for item, extent in extents for part in item.ran(extent)
    ]


def planned(part: Part, extent: Extent, folder: Path) -> tuple[Sweep, Expansion]:
    """The sweep of a part, with its files in ``folder``.

    Raises:
        ConfigError: the configuration is wrong, or the folder cannot be written to.
    """
    expansion = part.expansion(extent)
    sweep = manifest.plan(expansion, part.path, folder)
    manifest.write(sweep)
    return sweep, expansion


def _run_all(what: str, sweep: Sweep, jobs: int, tell: Tell) -> None:
    found = [numbers_of.read_run(sweep.folder_of(row)) for row in sweep.rows]
    rows = [row for row, run in zip(sweep.rows, found, strict=True) if run is None]
    tell(f"{what}: {len(sweep.rows)} runs, {len(sweep.rows) - len(rows)} finished before; in {sweep.runs}")
    _tell_of_other_code(what, sweep, rows, [run[2] for run in found if run is not None], tell)
    if not rows:
        return
    _forget_failures(what, sweep, rows, tell)
    main = threading.current_thread() is threading.main_thread()  # signals are heard there only
    with Stop().listening() if main else contextlib.nullcontext(Stop()) as stop:
        if jobs > 1:
            import_for_runs()
            supervisor = Supervisor(lambda row, asked: _run(sweep, row, asked), sweep.folder_of, jobs, stop, tell)
            code = supervisor.run(rows)
        else:
            code = _one_by_one(sweep, rows, stop, tell)
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    if code == FAILED:
        failed = sum(not state.finished(sweep.folder_of(row)) for row in sweep.rows)
        rest = "; the others are finished" if failed < len(sweep.rows) else ""
        raise TrainingError(
            f"{what}: {failed} of {len(sweep.rows)} runs failed, see above{rest}. The same command tries them again."
        )


def _forget_failures(what: str, sweep: Sweep, rows: Sequence[Row], tell: Tell) -> None:
    """Have runs that failed before tried again: whoever gives the command anew has mended what was wrong."""
    states = state.states((sweep.folder_of(row), row.rounds) for row in rows)
    failed = [row for row, known in zip(rows, states, strict=True) if known.status == "failed"]
    for row in failed:
        state.write_task(sweep.folder_of(row), "pending")
    if failed:
        tell(f"{what}: {len(failed)} runs that failed before are tried again")


def _tell_of_other_code(what: str, sweep: Sweep, rows: Sequence[Row], finished: Sequence[Code], tell: Tell) -> None:
    """Say which runs are of other code than there is now, before any is added to them."""
    begun = [folder for folder in map(sweep.folder_of, rows) if folder.checkpoint.exists()]
    for said, of in (("finished", finished), ("begun", [numbers_of.code_of(folder) for folder in begun])):
        other = [code for code in of if code.changed()]
        if other:
            changed = sorted({name for code in other for name in code.changed()})
            left = "left as before" if said == "finished" else "continued with this one's"
            runs, are = ("1 run was", "is") if len(other) == 1 else (f"{len(other)} runs were", "are")
            tell(
                f"{what}: {runs} {said} by another version of this package, and {are} {left}: the "
                f"numbers will say so. What changed: {_few(changed)}. To make all anew, remove {sweep.runs}."
            )


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:FEW]) + (f" and {len(names) - FEW} more" if len(names) > FEW else "")


def _one_by_one(sweep: Sweep, rows: Sequence[Row], stop: Stop, tell: Tell) -> int:
    code = DONE
    for place, row in enumerate(rows):
        tell(f"{place + 1} of {len(rows)}: {row.label}")
        try:
            ended, reason = _run(sweep, row, lambda: stop.asked)
        except DpflError as error:
            ended, reason = FAILED, error.as_options
        if ended == INTERRUPTED:
            return INTERRUPTED
        if ended == FAILED:
            tell(f"{row.label}: FAILED: {reason}")
            code = FAILED
    return code


def _run(sweep: Sweep, row: Row, asked: Callable[[], bool]) -> tuple[int, str]:
    """One run: code and reason, as a `Supervisor` has them."""
    base = sweep.source.parent
    own_folders.look_in(base)
    config = config_of(sweep.base, row, sweep.runs)
    begun = time.process_time()
    try:
        result = carried_out(
            config,
            base,
            place=place_of(config),
            reporter=Silent(),
            stop=asked,
            resume=True,
            label=row.label,
            picture=False,
            tables=False,  # of 100 silos they take as long as 500 rounds, and no page shows them
        )
    finally:
        with contextlib.suppress(OSError), _seconds_file(sweep).open("a") as file:
            file.write(json.dumps([row.id, round(time.process_time() - begun, 3)]) + "\n")
    codes = {"interrupted": INTERRUPTED, "failed": FAILED}
    return codes.get(result["status"], DONE), str(result["reason"])


def _seconds_file(sweep: Sweep) -> Path:
    """Of all sweeps of the folder, which may share runs."""
    return sweep.folder.parents[1] / "seconds.jsonl"


def _gathered(
    paper: Paper, item: Item, extent: Extent, sweeps: Sequence[tuple[Sweep, Expansion]]
) -> tuple[Numbers | None, int]:
    """The numbers of all runs, or how many are missing."""
    points, codes, missing = [], list[Code](), 0
    for part, (sweep, expansion) in zip(item.ran(extent), sweeps, strict=True):
        made, seconds = [], _seconds(sweep)
        for row, place in numbers_of.places(item, part, expansion):
            found = numbers_of.read_run(sweep.folder_of(row))
            if found is None:
                missing += 1
                continue
            result, lines, code = found
            if item.measure == EXCESS:
                lines = _with_excess(sweep, row, lines)
            made.append(Made(place, result, lines, seconds.get(row.id, float(result["seconds"]))))
            codes.append(code)
        points += numbers_of.gather(part, item.measure, made)
    if missing:
        return None, missing
    whole = replace(extent, seeds=(), device=None)
    runs = numbers_of.runs_digest(part.expansion(whole) for part in item.ran(whole))
    made_by = functools.reduce(operator.or_, codes)
    # Scores are made here, and the least loss, too.
    all_of = made_by | numbers_of.code_here("api.papers", "published.numbers", imported=item.measure == EXCESS)
    version, packages = dpfl_plugin.__version__, sorted(made_by.packages)
    numbers = Numbers(paper.name, item.name, extent.quick, version, packages, runs, points, None, all_of.listed())
    return replace(numbers, seeds=list(extent.seeds), devices=[] if extent.device is None else [extent.device]), 0


def _seconds(sweep: Sweep) -> dict[str, float]:
    """Of processors, by run; parts of a run that was interrupted are added up."""
    found: dict[str, float] = {}
    with contextlib.suppress(FileNotFoundError):
        for line in _seconds_file(sweep).read_text().splitlines():
            with contextlib.suppress(ValueError):  # the process was killed while it wrote
                name, seconds = json.loads(line)
                found[name] = found.get(name, 0.0) + seconds
    return found


def _with_excess(sweep: Sweep, row: Row, lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Lines with the log of the training loss above the least that there is."""
    least = _least_loss(sweep, row)
    return [{**line, EXCESS: _log10(line["train_loss"] - least)} for line in lines]


def _log10(value: float) -> float:
    return math.log10(value) if value > 0 else math.nan


def _least_loss(sweep: Sweep, row: Row) -> float:
    """min F of the run's records, without a regulariser as in the training loss; kept beside the runs."""
    from dpfl_plugin.runs.build import build
    from papers.optimum import optimum

    config = config_of(sweep.base, row, sweep.runs)
    facts = to_json(
        [config.data.model_dump(mode="json"), config.model.model_dump(mode="json"), config.public_seed], None
    )
    path = sweep.folder.parents[1] / f"least-{hashlib.sha256(facts.encode()).hexdigest()[:12]}.json"
    if path.exists():
        return float(json.loads(path.read_text()))
    exact = config.model_copy(update={"runtime": config.runtime.model_copy(update={"dtype": "float64"}), "l2": 0.0})
    least = optimum(build(exact, sweep.source.parent), 0.0).loss
    write_atomic(path, json.dumps(least))
    return least
