"""The result of a sweep as an object: its runs by label, as a table and as a picture."""

from __future__ import annotations

import html
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dpfl_plugin.api.plots import embedded, shown
from dpfl_plugin.api.runs import Run
from dpfl_plugin.config.load import GROUPS, flat
from dpfl_plugin.config.sweep import Row
from dpfl_plugin.errors import ConfigError, nearest
from dpfl_plugin.experiments import manifest
from dpfl_plugin.experiments.reports import runs as reports
from dpfl_plugin.experiments.reports.groups import ASKED, differing, epsilon_text, grouped, value_text
from dpfl_plugin.experiments.reports.plots import curves
from dpfl_plugin.experiments.status import SweepStatus, states
from dpfl_plugin.runs.folder import RunFolder
from dpfl_plugin.runs.run_status import status_of

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

MOST_ROWS: Final = 50  # that a notebook shows
HIDDEN: Final = ("run", "folder")  # there: columns say what varies


@dataclass(frozen=True, eq=False, repr=False)
class SweepResult(Mapping[str, Run]):
    """A sweep as a call of `dpfl.sweep` left it; a mapping of labels to the runs that are done.

    Attributes:
        folder: of the sweep. status: of all its runs. submitted: the jobs that Slurm has now. failed: whether a run of
            this call failed, also where no file of it could say so.
        dry_run: what would be run, and by which batch scripts, where nothing was.
    """

    folder: Path
    status: SweepStatus
    submitted: tuple[str, ...] = ()
    failed: bool = False
    dry_run: str = ""

    def __getitem__(self, label: str) -> Run:
        for row in self.status.rows:
            if row.label == label and status_of(self._folder_of(row)).status == "done":
                return Run.open(self._folder_of(row).path)
        raise KeyError(label)

    def __iter__(self) -> Iterator[str]:
        return (row.label for row in self.status.rows if status_of(self._folder_of(row)).status == "done")

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _folder_of(self, row: Row) -> RunFolder:
        return RunFolder(self.folder / "runs" / row.name / row.id)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One for each run, as its files are now: what `table` shows. What a run lacks is None.

        Each key that varies has a column, and so has each measure that the runs are judged by in `dpfl report`; of a
        file with variants their labels, too.
        """
        rows, result = self.status.rows, []
        statuses = states(map(self._folder_of, rows))
        read, changes = self._read(), [_changes(row) for row in rows]
        runs = [read.get(row.id) for row in rows]
        configs = [{**(run.config if run else {}), **own} for run, own in zip(runs, changes, strict=True)]
        differ = set(differing(configs))
        varied = dict.fromkeys(key for own in changes for key in own if key in differ)
        measures = dict.fromkeys(name for run in runs if run for name in run.own_measures)
        labels = manifest.variants_in(self.folder)[0]
        for row, now, run, config in zip(rows, statuses, runs, configs, strict=True):
            spent = run.guarantee if run else None
            result.append(
                {
                    "run": row.label,
                    **({reports.VARIANT: labels.get(row.id)} if labels else {}),
                    **{key: config.get(key) for key in varied},
                    "seed": run.seed if run else row.changes.get("seed"),
                    "status": now.status,
                    "rounds": now.round,
                    **{name: run.number(name) if run else None for name in measures},
                    "epsilon asked": config.get(ASKED),
                    "epsilon": spent.server if spent else None,
                    "delta": spent.delta if spent else None,
                    "seconds": now.seconds,
                    "folder": str(self._folder_of(row).path),
                }
            )
        return result

    def _read(self) -> dict[str, reports.Run]:
        """The runs that have begun, by their ids, as `dpfl report` sees them."""
        own = {row.id for row in self.status.rows}
        return {run.id: run for run in reports.scan([self.folder / "runs"])[0] if run.id in own}

    @property
    def table(self) -> pandas.DataFrame:
        """One row for each run."""
        import pandas

        return pandas.DataFrame(self.rows).set_index("run")

    def plot(self, measure: str | None = None, against: str = "rounds") -> Figure:
        """A measure by rounds: the mean over seeds of each configuration, with its 95 % confidence interval where there
        are five configurations or fewer: more bands would overlap.

        Args:
            measure: of evaluations (a column of `Run.history`); None: what the outcome is ranked by.
            against: rounds, epsilon, epsilon_third_party, bytes or seconds.

        Raises:
            ConfigError: no run has such numbers.
        """
        if against not in reports.AXES:
            raise ConfigError(f"against={against!r} must be one of {', '.join(reports.AXES)}.")
        runs = list(self._read().values())
        measures = list(dict.fromkeys(name for run in runs for name in run.numbers))
        if not measures:
            raise ConfigError(f"{self.folder}: nothing was measured yet. table shows what became of each run.")
        name = measures[0] if measure is None else measure
        figure = curves(grouped(runs), name, against) if name in measures else None
        if figure is None:
            known = f"{nearest(name, measures)}. Evaluations have {', '.join(measures)}."
            raise ConfigError(f"measure={name!r}, against={against!r}: no evaluation has such numbers{known}")
        return shown(figure)

    @property
    def exit_code(self) -> int:
        """Of the command: 1 where runs failed, unless others were submitted."""
        failed = self.failed or self.status.counts["failed"] > 0
        return int(failed and not self.submitted and not self.dry_run)

    def to_dict(self) -> dict[str, Any]:
        """What `dpfl status --json` prints of the sweep."""
        return self.status.to_dict()

    def __repr__(self) -> str:
        return f"SweepResult({self.status.summary[0]}, folder={str(self.folder)!r})"

    def __str__(self) -> str:
        if self.dry_run:
            return self.dry_run
        folder = shlex.quote(str(self.folder))
        more = f"Single runs, with score and epsilon: dpfl status {folder}\nTables and plots: dpfl report {folder}"
        return f"{self.status.scores()}\n{more}".lstrip("\n")

    def _repr_html_(self) -> str:
        if self.dry_run:
            return f"<pre>{html.escape(self.dry_run)}</pre>"
        rows = [{key: _cell(key, value) for key, value in row.items() if key not in HIDDEN} for row in self.rows]
        head = "".join(f"<th>{html.escape(key)}</th>" for key in rows[0])
        body = "".join(
            f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row.values())}</tr>" for row in rows[:MOST_ROWS]
        )
        more = f"<p>and {len(rows) - MOST_ROWS} more: <code>.table</code></p>" if len(rows) > MOST_ROWS else ""
        try:
            picture = embedded(self.plot())
        except ConfigError:  # nothing to draw yet
            picture = ""
        return f"<p>{html.escape(repr(self))}</p><table><tr>{head}</tr>{body}</table>{more}{picture}"


def _changes(row: Row) -> dict[str, Any]:
    """What a run changes but its seed, by the keys of a resolved configuration."""
    changes = flat({key: value for key, value in row.changes.items() if key != "seed"})
    blocks = [".".join(path) for path in GROUPS]
    return {f"{key}.name" if key in blocks else key: value for key, value in changes.items()}


def _cell(key: str, value: Any) -> str:
    if key == "epsilon":
        return epsilon_text(value)
    return "-" if value is None else value_text(round(value, 4) if isinstance(value, float) else value)
