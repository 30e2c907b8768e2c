"""A statement for those who answer for the records, to be read, checked and signed by them: in plain words, with names.

Every number in it is one of `ledger.json`, or follows from one by a formula that is named. `privacy.md` is the same for
experts, and may be published; this page names sites, so that it goes where their owners want it to.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

from dpfl_plugin.core.rounding import odds, places
from dpfl_plugin.core.text import counted
from dpfl_plugin.privacy import held_by
from dpfl_plugin.privacy.statement_page import in_short, section

FALSE_ALARMS: Final = (0.001, 0.01, 0.05)
MOST_OWNERS: Final = 20  # rows of a page
ROLES: Final = ("study lead", "owner of the records", "data protection officer")
ONE: Final = {"record": "record", "person": "person", "silo": "site's whole data set"}
SO_FAR: Final = {
    "running": " so far",
    "interrupted": " so far, and was interrupted",
    "failed": ", and then ended by an error",
    "budget_exhausted": ", until its budget was spent",
}
_UNDERSCORE: Final = re.compile(r"(?<![^\W_])_|_(?![^\W_])")  # one within a word is no mark-up
GENERAL: Final = (
    "What holds of people in general, whether a given person is among the records or not: a model may show that a "
    "habit makes ill, and that tells something about everybody who has it.",
    "What the records are used for elsewhere: epsilons of several studies on the same people add up.",
    "Code that runs at a site with the rights to read its records, and the people who work there.",
)


def power(epsilon: float, delta: float, false_alarms: float) -> float:
    """The most often that a test with so many false alarms can be right, under (epsilon, delta)-differential privacy.

    Wasserman and Zhou 2010, Theorem 2.4; Kairouz, Oh and Viswanath 2015, Theorem 2.1: a test that is wrong with
    probability a where the record is absent is right with probability at most e^epsilon a + delta where it is there,
    and the same holds of the opposite test.

    Returns:
        a probability, at least that of both bounds: min(e^epsilon a + delta, 1 - e^-epsilon (1 - delta - a)).
    """
    first = math.exp(min(epsilon, 700.0)) * false_alarms + delta
    second = 1.0 - math.exp(-epsilon) * max(0.0, 1.0 - delta - false_alarms)
    return max(false_alarms, min(1.0, first, second))


def page(said: dict[str, Any], *, names: Mapping[int, str], study: str, made: str, version: str, digest: str) -> str:
    """The page, in Markdown.

    Args:
        said: what `ledger.json` says, of a run of which something is guaranteed.
        names: of sites, by silo. made: the day. digest: of `ledger.json`.
    """
    run, held = said["run"], held_by.first(said, "sites")
    held += " " * bool(held)
    parts = [
        f"# Statement on the protection of records: {study or run['name']}",
        f"Made on {made} by dpfl {version} from the ledger of run `{run['id']}`, which was read, found whole, and from "
        f"which epsilon was computed anew. {held}SHA-256 of the run's ledger.json: `{digest}`.",
        *(f"**{text}**" for text in said["warnings"]),
        *_others(said),
        _records(said, names),
        "## What is guaranteed\n\n" + in_short(said),
        _tests(_guaranteed(said), said["protects"]),
        section("What the guarantee rests on", "", said["assumptions"]),
        section("What is not covered", "", [*_of_persons(said), *GENERAL, *said["caveats"]]),
        _signatures(said, names),
    ]
    return "\n\n".join(parts) + "\n"


def _of_persons(said: dict[str, Any]) -> list[str]:
    """What whoever reads "a record" may take it for."""
    if said["protects"]["unit"] != "record":
        return []
    return [
        "A person with several records, at one site or at several, is protected less: each record counts by itself."
    ]


def _others(said: dict[str, Any]) -> list[str]:
    if not said["shared"] or not said["shared"]["num_runs"]:
        return []
    return [
        "Epsilons are those of this run together with the other runs on the same data that a shared ledger held when "
        "it ended, also if some of them were chosen by looking at others. They are as was written then, and were not "
        "computed anew. What later runs add adds to them: `dpfl account` with the shared ledger states the total of "
        "all that it holds."
    ]


def _records(said: dict[str, Any], names: Mapping[int, str]) -> str:
    unit, run = said["protects"]["unit"], said["run"]
    whose = "persons" if unit == "person" else "records"
    lines = [
        "## Whose records\n",
        f"A model was trained in {counted(run['rounds'], 'round')}{SO_FAR.get(run['status'], '')}. "
        f"{held_by.what_left(said)}\n",
    ]
    if said["silos"] is None:
        sites = ", ".join(_cell(names.get(silo, f"silo {silo}")) for silo in range(run["num_silos"]))
        lines.append(f"Sites: {sites}. What single sites spent is not published, since it tells who took part.")
        return "\n".join(lines)
    lines += [f"| site | {whose} | rounds | epsilon | in words |", "| --- | --- | --- | --- | --- |"]
    for silo in said["silos"]:
        epsilon = _of_site(silo, said)
        spent = ("at most the worst", "") if epsilon is None else (places(epsilon, 3), odds(epsilon))
        site, counts = _site(silo["silo"], names), _counts(silo, unit)
        lines.append(f"| {site} | {counts} | {silo['rounds']} | {spent[0]} | {spent[1]} |")
    if any("num_test_records" in silo for silo in said["silos"]):
        lines.append(
            "\nRecords to test on are in no release, and nothing is promised of them. Any record may be one of them, "
            "so that raw test measures are covered for nobody."
        )
    return "\n".join(lines)


def _of_site(silo: Mapping[str, Any], said: dict[str, Any]) -> float | None:
    """A site's epsilon, of all that belongs together as in `_guaranteed`; None where it is not worked out."""
    if said.get("tuning"):
        return float(said["tuning"]["epsilon"])
    found = said["shared"]["adaptive"] if said["shared"] and said["shared"]["num_runs"] else silo
    return None if found["epsilon"] is None else float(found["epsilon"])


def _guaranteed(said: dict[str, Any]) -> Mapping[str, Any]:
    """Epsilon and delta towards the server: of all candidates of a tuning, of all runs of one ledger."""
    views: dict[str, Any] = said["views"]
    if said.get("tuning"):
        return {key: said["tuning"][key] for key in ("epsilon", "delta")}
    if said["shared"] and said["shared"]["num_runs"]:
        return {key: said["shared"]["adaptive"][key] for key in ("epsilon", "delta")}
    return {key: views["server"][key] for key in ("epsilon", "delta")}


def _tests(guaranteed: Mapping[str, Any], protects: Mapping[str, Any]) -> str:
    """What epsilon means for somebody who wants to find out; nothing where nothing was released."""
    epsilon, delta = guaranteed["epsilon"], guaranteed["delta"]
    if epsilon is None:
        return "Nothing was released, so that nothing can be found out."
    one = ONE[protects["unit"]]
    other = "or another in its place" if protects["neighbouring"] == "replace_one" else "or counted as zero"
    lines = [
        "**In terms of a test.** Somebody who sees everything that the server sees, and knows all other records, wants "
        f"to find out whether a {one} that they know was used, {other}. However clever the test, it is right at most "
        "as often as the last column says:\n",
        "| wrongly says yes | by chance alone it would rightly say yes | rightly says yes at most |",
        "| --- | --- | --- |",
    ]
    for rate in FALSE_ALARMS:
        lines.append(f"| {100 * rate:g} % | {100 * rate:g} % | {places(100 * power(epsilon, delta, rate), 1)} % |")
    return "\n".join(lines)


def _signatures(said: dict[str, Any], names: Mapping[int, str]) -> str:
    """A row for each who signs: for the owner of each site's records, where the sites are not too many."""
    sites = range(said["run"]["num_silos"]) if said["silos"] is None else [silo["silo"] for silo in said["silos"]]
    lead, owner, officer = ROLES
    owners = [f"{owner} of {_site(silo, names)}" for silo in sites]
    if len(owners) > MOST_OWNERS:
        owners = [f"{owner}, for each of {len(owners)} sites on a sheet of its own"]
    lines = ["## Read and accepted\n", "| | name | date | signature |", "| --- | --- | --- | --- |"]
    return "\n".join([*lines, *(f"| {role} | | | |" for role in (lead, *owners, officer))])


def _site(silo: int, names: Mapping[int, str]) -> str:
    name = names.get(silo)
    return f"silo {silo}" if name is None else f"{_cell(name)} (silo {silo})"


def _counts(silo: Mapping[str, Any], unit: str) -> str:
    """Of a site: records, or persons, to train on, and the records to test on, where these are known."""
    tested = silo.get("num_test_records")
    if tested is None:
        return str(silo["num_records"])
    return f"{silo['num_records']} to train on, {tested} {'records ' * (unit == 'person')}to test on"


def _cell(name: str) -> str:
    """A name that ends no cell of a table, and begins no mark-up."""
    escaped = "".join(f"\\{letter}" if letter in r"\`*|[]<>#" else letter for letter in name)
    return _UNDERSCORE.sub(r"\\_", escaped)
