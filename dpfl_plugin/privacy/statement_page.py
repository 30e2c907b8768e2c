"""`privacy.md`: what a privacy statement says, for people. Every number in it is one of `ledger.json`."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_CEILING, Context
from typing import Any, Final

from dpfl_plugin.core.rounding import odds
from dpfl_plugin.core.text import counted
from dpfl_plugin.privacy import held_by

_MOST_SILOS: Final = 20  # rows of the table; ledger.json has all
OWN = ("budget", "noise_multiplier", "record_rate", "clip_norm")
OWN_HEAD = " budget | noise_multiplier | record_rate | clip_norm |"
OWN_NOISE = (
    "* silos with settings of their own: sigma, batch and C above are those of the others; each silo's, its budget and "
    "what it spent are in the table of silos below",
)


def markdown(said: dict[str, Any]) -> str:
    """The statement in words. The same data give the same text."""
    parts, notes = [_title(said), *(f"**{text}**" for text in said["warnings"])], said["notes"]
    if said["guarantee"].startswith("none"):
        parts += [_unprotected(said)]
    else:
        parts += [in_short(said), _who(said), _how(said), _epsilons(said), *_total(said), _silos(said)]
        parts += [section("Assumptions", "The numbers above hold if:", said["assumptions"])]
        parts += [section("What is not covered", "", said["caveats"])]
        notes = [text for text in notes if text not in said["caveats"]]
    parts += [section("Notes of this run", "", notes)] if notes else []
    return "\n\n".join([*parts, _verify(said)]) + "\n"


def _title(said: dict[str, Any]) -> str:
    run = said["run"]
    ended = {
        "done": "finished",
        "budget_exhausted": "ended by its privacy budget",
        "interrupted": "interrupted; it can be resumed",
        "failed": "failed",
        "running": "so far",
    }[run["status"]]
    if said.get("counted", {}).get("rounds_ahead"):
        ended += ", and some more counted in advance"
    why = f": {run['reason']}" if run["reason"] else ""
    if "oracle" in run:
        return (
            f"# Privacy statement: {run['name']}\n\nOracle `{run['id']}`, {run['rounds']} releases of one silo's "
            f"records, {ended}."
        )
    held = "" if said["guarantee"].startswith("none") else held_by.first(said, "silos")
    return (
        f"# Privacy statement: {run['name']}\n\nRun `{run['id']}`, {counted(run['rounds'], 'round')} at "
        f"{counted(run['num_silos'], 'silo')}, {ended}{why}.{' ' * bool(held)}{held}"
    )


def _unprotected(said: dict[str, Any]) -> str:
    why = said["guarantee"].removeprefix("none: ")
    return (
        f"**Nothing is protected**: {why}. Whoever sees a message or a model of this run may learn anything about any "
        "record: there is no epsilon. Treat the model, and everything in this folder, as you treat the records "
        "themselves."
    )


def in_short(said: dict[str, Any]) -> str:
    server, third_party = said["views"]["server"], said["views"]["third_party"]
    if said.get("tuning"):
        third_party = server = {**server, **{key: said["tuning"][key] for key in ("epsilon", "delta")}}
    if server["neighbouring"] is None:
        return "Nothing was released: no silo sent anything, so nothing could be learned."
    what = {
        ("record", "replace_one"): "replacing any one record",
        ("record", "add_or_remove"): "counting any one record, or counting it as zero,",
        ("person", "replace_one"): "replacing all the records that any one person has at a silo",
        ("person", "add_or_remove"): "counting any one person with all its records, or counting it as zero,",
        ("silo", "replace_one"): "replacing all the records of any one silo",
        ("silo", "add_or_remove"): "counting the update of any one silo, or counting it as zero,",
    }[said["protects"]["unit"], said["protects"]["neighbouring"]]
    seeded = said["mechanism"].get("randomness") == "seeded"
    return (
        f"In short{', with fresh randomness' * seeded}: {what} changes the probability of whatever the server may see "
        "by a factor of at most "
        f"{factor(server['epsilon'])}, up to an additional {number(server['delta'])} (delta). For somebody who sees "
        f"the models only, the factor is {factor(third_party['epsilon'])}. Epsilons here are rounded up."
        + _with_others(said)
    )


def _with_others(said: dict[str, Any]) -> str:
    if said.get("tuning"):
        return (
            f" **This run is one of {said['tuning']['num_candidates']} candidates of a tuning.** Which of them is kept "
            "was chosen by what all of them released, so the numbers of this paragraph are those of all candidates "
            "together, scores and final training included. What this run released by itself (below) is no guarantee "
            "of its model."
        )
    if not said["shared"] or not said["shared"]["num_runs"]:
        return ""
    total = said["shared"]["adaptive"]
    return (
        " **Together with the other runs on the same data** (below), also if some were chosen by looking at others, "
        f"both factors are at most {factor(total['epsilon'])}, at delta {number(total['delta'])}."
    )


def _who(said: dict[str, Any]) -> str:
    unit, relation = said["protects"]["unit"], said["protects"]["neighbouring"]
    unit_words = {
        "record": "One record of one silo. A person with several records is protected less: each record counts.",
        "person": _person(said),
        "silo": "The whole data set of one silo, and with it every record and every person in it.",
    }[unit]
    public = "persons, test records" if unit == "person" else "records"
    change = {
        ("record", "replace_one"): "one record of one silo had been any other",
        ("record", "add_or_remove"): "one record of one silo had counted as zero, or a zero as a record",
        ("person", "replace_one"): "all records of one person at one silo had been any others, and any number of them",
        ("person", "add_or_remove"): "one person at one silo had counted as zero with all its records, or a zero as a "
        "person",
        ("silo", "replace_one"): "all records of one silo had been any others",
        ("silo", "add_or_remove"): "the update of one silo had counted as zero, or a zero as an update",
    }[unit, relation]
    others = f"; {held_by.HOLDER}" * held_by.together(said)
    if said["mechanism"]["randomness"] == "seeded":
        others += "; and whoever has this folder, where the seed of the noise is"
    return (
        "## Who is protected, and against whom\n\n"
        f"* **What is protected** (`unit: {unit}`): {unit_words}\n"
        f"* **Compared with what** (`{relation}`): what is seen is nearly as likely as if {change}. The numbers of "
        f"{public} and silos count as public{', and how many records a person has does not' * (unit == 'person')}.\n"
        f"{_against(said)}"
        f"* **Not against**: a silo's own staff, who have its records{others}."
    )


def _against(said: dict[str, Any]) -> str:
    """An oracle has no server: what a run's server is shown, its training loop is."""
    if "oracle" in said["run"]:
        return (
            "* **Against the server**, which is the training loop here, and whoever looks on: it sees every release of "
            "the oracle, and may compute what it likes from them.\n"
            "* **Against third parties**: whoever is given all the models that the loop made of these releases alone, "
            "and nothing else.\n"
        )
    return (
        "* **Against the server**: it follows the protocol, sees every message of every silo, and may compute what it "
        "likes from them. No silo's noise is counted in favour of another silo.\n"
        "* **Against third parties**: whoever is given all the models that the server made, and nothing else.\n"
    )


def _person(said: dict[str, Any]) -> str:
    """What protecting a person means; the keys are those of a run that does."""
    protects = said["protects"]
    if protects.get("unit") != "person":
        return ""
    most = protects["max_records_per_person"]
    used = "one record of a person is" if most == 1 else f"{most} records of a person are"
    several = (
        " **A person who is at several silos is protected at each of them by itself**: what several silos release "
        "about it adds up, which no epsilon here counts."
        if protects["shared_persons"] == "per_silo"
        else " No person is at two silos; that was checked before the run."
    )
    return (
        f"One person of one silo, with all training records that the data name as that person's there. At most {used} "
        f"used, the same ones all the time.{several}"
    )


def _how(said: dict[str, Any]) -> str:
    mechanism = said["mechanism"]
    unit = "person" if said["protects"]["unit"] == "person" else "record"
    sampler = {
        "fixed": f"a fixed number of {unit}s, drawn without replacement anew for each release",
        "poisson": f"each {unit} independently with a fixed probability, drawn anew for each release; it may be empty",
        "full": f"all {unit}s of the silo",
        "with_replacement": "a fixed number of draws from all records, anew for each step",
        "cyclic": "the records are dealt out once, into batches that take turns; a release takes the next",
    }[mechanism["sampler"]]
    sizes = [f"{key} {number(mechanism[key])}" for key in ("record_rate", "batch_size") if mechanism[key] is not None]
    clipped = {
        "record": "each record's gradient",
        "person": "the mean gradient of each person's records",
        "silo": "each silo's whole update",
    }[said["protects"]["unit"]]
    solved = ", solved for the budget" * mechanism["noise_multiplier_solved"]
    own = mechanism["clip"].get("name") == "adaptive"
    clip_norm = f"{'C_i at first' if own else 'C ='} {number(mechanism['clip_norm'])}"
    began, went = ("of a silo was released", "was handed on") if held_by.together(said) else ("left a silo", "left")
    lines = [
        "## How\n",
        f"Before anything {began}, {clipped} was clipped, with {clip_norm}, and Gaussian noise was added. A "
        "release is\n",
        f"    {mechanism['formula']}\n",
        f"* mechanism: {mechanism['name']}, noise_multiplier sigma = {number(mechanism['noise_multiplier'])}{solved} "
        "(noise standard deviation / L2 sensitivity under the relation above)",
        f"* schedule: {_schedule(mechanism['schedule'])}",
        f"* clipping: {mechanism['clip']['what']}",
        f"* batch (`sampler: {mechanism['sampler']}`): {sampler}{'; ' + ', '.join(sizes) if sizes else ''}",
        *_cycle(mechanism),
        *(OWN_NOISE if any("budget" in silo for silo in said["silos"] or ()) else ()),
        f"* releases: {said['num_releases']} in all, in {said['num_charges']} charges (a charge is what one silo "
        f"released in one round); each was in the ledger, on disk, before it {went}",
    ]
    lines += [f"* {line}" for line in said["beside"]]
    if said["max_participations"] is not None:
        lines.append(f"* participation: a silo takes part in {said['max_participations']} rounds at most")
    if said["protects"]["unit"] == "silo":
        lines.append("* batches do not count here: a silo's update is protected whichever of its records it used")
    return "\n".join(lines)


def _cycle(mechanism: dict[str, Any]) -> list[str]:
    """Of batches in a cycle, and noise that is correlated over them."""
    if "cycle" not in mechanism:
        return []
    cycle = mechanism["cycle"]
    lines = [
        f"* cycle: {cycle['batches']} batches, so that a record is in one of so many releases of its silo in a row; "
        "what a silo released is charged as so many releases of all records as it began passes over the batches"
    ]
    if cycle["bands"] > 1:
        c, norm = ", ".join(number(one) for one in cycle["coefficients"]), number(cycle["norm"])
        lines.append(
            f"* noise: correlated over {cycle['bands']} steps, with c = {c} and its norm |c| = {norm}; "
            "the releases that a record moves by one of its steps are none that it moves by another"
        )
    return lines


def _schedule(schedule: dict[str, Any]) -> str:
    if schedule.get("name") == "constant":
        return str(schedule["what"])
    return f"{schedule['what']}; sigma is that of its beginning, and every release was charged with its own"


def _epsilons(said: dict[str, Any]) -> str:
    accountant, budget = said["accountant"], said["budget"]
    alone = " by this run alone, which is not its guarantee (above)" * bool(said.get("tuning"))
    lines = [f"## What was spent{alone}\n", *_table(said["views"])]
    if budget["epsilon"] is not None:
        of = "what the server sees" if budget["view"] == "server" else "what third parties see"
        own = any(silo.get("budget", budget["epsilon"]) != budget["epsilon"] for silo in said["silos"] or ())
        except_own = "; a silo with a budget of its own (table of silos below) keeps to that" * own
        given = f"a budget of epsilon {number(budget['epsilon'])} for {of}{except_own}"
        lines.append(f"\nThe run was given {given}.")
    lines += _in_advance(said)
    lines.append(f"\nAccountant: {accountant['name']}; {accountant['error']}.")
    if accountant["caveat"]:
        lines.append(f"It {accountant['caveat']}.")
    return "\n".join(lines)


def _in_advance(said: dict[str, Any]) -> list[str]:
    if "counted" not in said:
        return []
    ahead, charges = said["counted"]["rounds_ahead"], said["num_charges"]
    upper = f", {ahead} rounds to come among them, as if they were like the last" if ahead else ""
    return [
        f"\nThe numbers count {charges} charges{upper}. A charge is counted here before it is in the ledger, and this "
        f"page is written anew before one is made that it does not count. While the ledger holds fewer than {charges} "
        "charges, the numbers are upper bounds; `dpfl account` says what it proves at any time."
    ]


def _table(views: dict[str, Any]) -> list[str]:
    """The views; why a third party's number may be the larger one is said where it is."""
    server, third_party = views["server"], views["third_party"]
    rows = [
        ("server, as it went", server["epsilon"], server["basis"]),
        ("server, worst case", server["worst_case_epsilon"], server["worst_case_basis"]),
        ("third party", third_party["epsilon"], third_party["basis"]),
    ]
    if "outsider" in views:
        rows.append(
            ("third party who does not know who took part", views["outsider"]["epsilon"], views["outsider"]["basis"])
        )
    head = ["| seen by | epsilon | delta | what was counted |", "| --- | --- | --- | --- |"]
    delta = number(server["delta"])
    lines = [*head, *(f"| {who} | {_epsilon(value)} | {delta} | {basis} |" for who, value, basis in rows)]
    if (third_party["epsilon"] or 0) > (server["epsilon"] or 0):
        lines.append(
            "\nWhat is said of a third party holds in advance, whoever is drawn; the server's number as it "
            "went is that of those who were drawn, and may be smaller."
        )
    return lines


def _total(said: dict[str, Any]) -> list[str]:
    shared = said["shared"]
    if shared is None:
        return []
    others = "1 other run" if shared["num_runs"] == 1 else f"{shared['num_runs']} other runs"
    held = f"Besides this run it holds {others}." if shared["num_runs"] else "So far it holds this run alone."
    how = (
        " Runs on the same records at the same silos add up silo by silo. Of every other run the costliest silo "
        "counts, since any record may have been there."
        if shared["num_same_records"] < shared["num_runs"]
        else ""
    )
    adaptive, planned = shared["adaptive"], shared["planned"]
    lines = [
        "## Together with other runs on the same data\n",
        f"This run was charged to a ledger that other runs may share. {held}{how} Each run counts with all that it "
        "registered before its first release, also if it ended earlier. What is added to the ledger after this was "
        "written adds to these numbers.\n",
        f"* All runs, also if some were chosen by looking at others: epsilon {_epsilon(adaptive['epsilon'])} at delta "
        f"{number(adaptive['delta'])}, {adaptive['why']}.",
    ]
    if planned is not None:
        lines.append(
            f"* The {planned['num_runs']} runs that were registered before any of them released anything, if nothing "
            f"that later runs released was used in them: epsilon {_epsilon(planned['epsilon'])} at delta "
            f"{number(planned['delta'])}, the epsilon of their joint plan."
        )
    return ["\n".join(lines)]


def _silos(said: dict[str, Any]) -> str:
    silos = said["silos"]
    if silos is None:
        return (
            "## Each silo, towards the server\n\nWhat single silos spent tells how often they took part. It is not "
            "published here, since something is claimed of an outsider who does not know that: see `details.json`."
        )
    worst = said["views"]["server"]["worst_silo"]
    shown = silos if len(silos) <= _MOST_SILOS else silos[:_MOST_SILOS]
    lines = ["## Each silo, towards the server\n"]
    own = any("budget" in silo for silo in silos)
    whose = "persons" if said["protects"]["unit"] == "person" else "records"
    lines += [f"| silo | {whose} | rounds | epsilon |" + OWN_HEAD * own]
    lines += ["| --- | --- | --- | --- |" + " --- |" * len(OWN) * own]
    for silo in [*shown, *(s for s in silos[len(shown) :] if s["silo"] == worst)]:
        cells = [silo["silo"], silo["num_records"], silo["rounds"], _silonumber(silo["epsilon"], said)]
        cells += ["none" if silo[key] is None else number(silo[key]) for key in OWN] if own else []
        lines.append(f"| {' | '.join(map(str, cells))} |")
    if len(shown) < len(silos):
        lines.append("\nThe first silos, and the one that spent most; `ledger.json` has all of them.")
    if len(silos) > 1:
        lines.append(
            "\nNumbers, since this page may be published. Which site is which: `silos.csv` of the run, which may not."
        )
    return "\n".join(lines)


def section(title: str, opening: str, items: Sequence[str]) -> str:
    body = "\n".join(f"* {_sentence(item)}" for item in items)
    return "\n\n".join(part for part in (f"## {title}", opening, body) if part)


def _sentence(text: str) -> str:
    """With a capital letter, unless it begins with a name of the configuration."""
    return text if "_" in text.split()[0] else text[0].upper() + text[1:]


def _verify(said: dict[str, Any]) -> str:
    shared = said["shared"]
    if "oracle" in said["run"]:
        file = said["run"]["oracle"]
        if file is None:
            return (
                "## How to verify\n\nThe charges were kept in memory (`ledger=None`): they are lost when the process "
                "ends, nobody can verify them, and no other run on the same records counts them."
            )
        return (
            f"## How to verify\n\n`dpfl account {file}` reads the ledger, checks that no line was changed or is "
            "missing between others, and adds up all that it holds. The ledger and its key are not to be "
            "published."
        )
    lines = [
        "## How to verify\n",
        "`dpfl account FOLDER`, with the folder that this file is in, reads `ledger.jsonl`, checks that no line was "
        "changed or is missing between others, and that its end holds what the checkpoint and `details.json` next to "
        "it know of; then it computes the server's epsilon anew by every accountant that knows the mechanism.",
        "The checksum of the ledger's last line, when this was written, is in `details.json`. Kept elsewhere, it shows "
        "later whether lines are missing at the end.",
    ]
    if shared is not None:
        lines.append(
            "`dpfl account FILE`, with the shared ledger, adds up all runs. That file alone cannot show that whole "
            "lines are missing at its end: what its last line was is in `details.json`, and has to be in it still."
        )
    lines.append(_publishing(said))
    return "\n".join(lines)


def _publishing(said: dict[str, Any]) -> str:
    """Which files may leave the run's folder."""
    if said["guarantee"].startswith("none"):
        model = "Nothing protects the model (above)"
    elif said["mechanism"]["randomness"] == "fresh":
        model = "So may the model, at the epsilon that is stated here"
    else:
        model = (
            "The model of a simulation has no epsilon towards whoever knows or guesses the seed (above): run it with "
            "privacy.randomness: fresh before you publish it"
        )
    return (
        "`ledger.json` holds every number of this page for programs. These two files may be published. "
        f"{model}. No epsilon covers any other file of the run's folder."
    )


def number(value: float | None) -> str:
    return "none" if value is None else f"{value:.15g}"


def _epsilon(value: float | None) -> str:
    """Four digits, rounded up; none where nothing is guaranteed."""
    if not value:
        return "none" if value is None else "0"
    rounded = Context(prec=4, rounding=ROUND_CEILING).create_decimal_from_float(value)
    return f"{float(rounded):g}"


def factor(epsilon: float | None) -> str:
    """What epsilon means, as a power of e and in plain digits."""
    return f"e^{_epsilon(epsilon)}" + ("" if epsilon is None else f" ({odds(epsilon)})")


def _silonumber(value: float | None, said: dict[str, Any]) -> str:
    if value is None and said["views"]["server"]["epsilon"] is not None:
        return "at most the worst"  # not worked out for each of many kinds of silos
    return _epsilon(value)
