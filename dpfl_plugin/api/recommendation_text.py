"""Which method to begin with, in words."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from dpfl_plugin.api import fitting
from dpfl_plugin.api.plan_text import Answer, OfOneRun
from dpfl_plugin.core.text import Printed
from dpfl_plugin.errors import in_python
from papers.drift_control import PAGE, PLAIN


class Recommended(Printed, OfOneRun):
    """The method for one run; ``print`` shows what `dpfl plan --recommend` does."""

    def __str__(self) -> str:
        return _text({self.label: self})


class RecommendedVariants(Printed, dict[str, Answer]):
    """The method for each variant, by label; ``print`` shows what `dpfl plan --recommend` does."""

    def __str__(self) -> str:
        return _text(self)


def _text(answers: Mapping[str, Answer]) -> str:
    return in_python(fitting.printed(lambda console: show(console, answers, more="this mapping")))


def show(console: Console, answers: Mapping[str, Answer], more: str = "--json") -> None:
    """Print the method for each run; runs with the same answer share it. ``more``: what names the sources."""
    shown: list[tuple[list[str], Answer]] = []
    for label, answer in answers.items():
        same = next((labels for labels, other in shown if other == answer), None)
        if same is None:
            shown.append(([label], answer))
        else:
            same.append(label)
    for labels, answer in shown:
        _show(console, ", ".join(labels), answer, more)


def _show(console: Console, labels: str, answer: Answer, more: str) -> None:
    def say(text: str) -> None:
        console.print(text, soft_wrap=True, markup=False)

    say(f"Measured on {'; and on '.join(answer['measured_on'])}; not a prediction for your data.")
    say(f"Setting: {answer['measured']}")
    for remark in answer["outside"]:
        say(f"not measured: {remark}.")
    for remark in answer["remarks"]:
        say(f"between measurements: {remark}.")
    say(f"{labels}: begin with {answer['recommended']}: {' '.join(f'--set {one}' for one in answer['set'])}")
    say(_why(answer))
    fitting.show(console, _table(answer))
    shown = [name for name in answer["methods"] if name in (answer["recommended"], PLAIN)]
    for cell in answer["cells"]:
        at = ", ".join(f"{key} {cell[key]}" for key in ("skew", "silo_rate", "local_steps"))
        found = "; ".join(
            f"{name} {cell['accuracy'][name]:.3f} with local_lr {cell['local_lr'][name]:.2g}" for name in shown
        )
        say(f"  {at}, epsilon {cell['epsilon']:g} ({cell['seeds']} seeds): {found}")
    say(f"Each method had its own best step size, which is not yours{_step(answer)}: tune it.")
    say(f"Numbers {answer['origin']}. All of them: {PAGE}; {more} names the sources.")


def _why(answer: Answer) -> str:
    first, best, near = answer["recommended"], answer["best"], answer["level_with_the_best"]
    level = [name for name in near if name != first]
    if first == best:
        return "It was the most accurate" + (
            f", and is simpler than what was level with it: {'; '.join(level)}." if level else "."
        )
    if first in near:
        others = f"; so were: {'; '.join(level)}" if level else ""
        return f"It is the simplest that was level with the most accurate, {best}{others}."
    ahead = answer["best_ahead_of_recommended"]
    return (
        f"The most accurate here, {best}, was {100 * ahead['mean']:.1f} ± {100 * ahead['error']:.1f} points ahead "
        "of it; with silos like these drift control gained too little, or not often enough, to be advised."
    )


def _step(answer: Answer) -> str:
    """How the recommended method's step size compares with FedAvg's, which a user may have."""
    if answer["recommended"] == PLAIN:
        return ""
    least, most = (f"{one:.2g}" for one in answer["step_by_fedavgs"])
    times = "as large as" if least == most == "1" else f"{least if least == most else f'{least} to {most}'} times"
    return f" (that of {answer['recommended']} was {times} FedAvg's)"


def _table(answer: Answer) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("method", no_wrap=True)
    table.add_column(f"accuracy on {' and '.join(answer['data_sets'])}", justify="right", no_wrap=True)
    table.add_column("points ahead of FedAvg", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for name, row in answer["methods"].items():
        ahead, error = row["ahead_of_fedavg"], row["standard_error"]
        said = "" if ahead is None else f"{100 * ahead:+.1f} ± {100 * error:.1f}"
        apart = "" if ahead is None or row["told_apart"] else "not told apart"
        table.add_row(name, f"{row['accuracy']:.3f}", said, apart)
    return table
