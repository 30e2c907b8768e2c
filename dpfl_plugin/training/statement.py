"""The privacy statement of a run: `ledger.json` for programs, and `privacy.md`, the same in words.

Every number in `privacy.md` is one of `ledger.json`. What of the statement may be published: `published`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import ROUND_CEILING, Context
from typing import Any, Final

from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.rounding import odds
from dpfl_plugin.privacy.accountants import Accountant
from dpfl_plugin.privacy.rules import PrivacyRules
from dpfl_plugin.training.accounting import PrivacyAccount

STATEMENT_SCHEMA: Final = 1
_MOST_SILOS: Final = 20  # rows of the table in privacy.md; ledger.json has all

ASSUMPTIONS = (
    "The server is honest but curious: it sees every message of every silo, and who took part.",
    "Who takes part is drawn independently of the data. The server's epsilon needs no more; a third party's needs "
    "that it was drawn with the stated probability.",
    "The numbers of training and test records of the silos are public.",
)
REVEALED = (
    "No epsilon covers everything that the server was given: by evaluation.reveal: server it has, of every silo, "
    "the loss on its training records and the accuracy on its test records{more}, computed without noise."
)
REVEALED_GRADIENTS = ", and (evaluation.dissimilarity) the gradient of its loss"
SIMULATION = (
    "A simulation: noise, batches and participants follow from the seed, which is in the run's config.yaml (0 unless "
    "somebody gave another). Towards whoever knows or guesses it nothing is promised: without unknown noise there is "
    "no epsilon, and without unknown batches and participants they amplify nothing. The epsilons here are those of the "
    "algorithm, had all been drawn unpredictably, as privacy.secure does."
)
SEEDED = (
    "The seed of the run is not known to those against whom it protects: with the seed the noise can be computed. "
    "A simulation's seed is in its configuration: its epsilon is the algorithm's, not that of publishing this folder.",
    "Runs of one seed share noise only where configuration, records, code, model and machine are the same, and rounds "
    "only where they are asked at the same values. What code reads while it runs (files, environment variables, "
    "clocks) is taken to stay as it is.",
)
KNOWN_SEED = (
    "The seed is 0, the default, which everybody knows: nothing that was released is protected from anybody. Use a "
    "seed that nobody can guess, or privacy.secure: true.",
)
SECURE = (
    "Batches and noise came from AES-128 in counter mode under keys that each silo drew from its operating system, "
    "used for one round and never stored: the seed of the run does not reveal them.",
)
SECURE_DRAWS = (
    "Who took part was drawn from 256 bits of the server's operating system, which were known to nobody before the run "
    "and are in its checkpoint only.",
)
ZERO_OUT = (
    "add_or_remove means that a record (or a silo's update) is there or counts as zero, while the public numbers of "
    "records and silos stay as they are; that these numbers changed is not hidden.",
)
SHARED = (
    "The total covers the runs that the shared ledger holds, and no other use of the records. In each of them a record "
    "is at one silo at most, and how records are dealt to silos is taken as given: a partitioner that looks at labels "
    "could deal other records elsewhere if one were replaced.",
)
OUTSIDER = (
    "What is said of an outsider needs more: nobody tells who took part in which round (whoever knows the seed can "
    "compute it), and no silo tells its noise.",
)
EARLY_STOPPING = (
    "Validation scores are releases too: each silo's noisy count of correct predictions on records that no gradient "
    "reads, charged to those records, so for each record the costlier of rounds and scores counts.",
    "When the run ends depends on scores, which are releases. All rounds and scores that were planned are therefore "
    "charged, also where it ended before: a shorter run is a function of the planned one.",
)
PERSONALISED = (
    "Each silo's own model is made from private gradients, charged like those of a round, and stays at the silo. What "
    "is reported of it is a measurement on test records, like every accuracy here.",
)
LOST = (
    "Silos were lost while the run went on (see the notes), and a record may make its silo fail. What is said of who "
    "takes part therefore counts for nothing here: a third party's epsilon is the server's worst case, in which a silo "
    "is in every round and in every attempt at one. A round in which a silo was lost was made again by the others with "
    "fresh noise, and every attempt is charged, that of the lost silo included.",
)
FAILURES = (
    "That a silo failed, when, and what it said of it, is seen by the server and shown in this folder; no epsilon "
    "covers what that reveals about its records.",
)
MEASUREMENTS = (
    "Losses and accuracies in metrics.jsonl, result.json and curves.png are computed from records without noise, for "
    "the experimenter; publishing them is not covered by any epsilon here.",
    "A run that ends because its loss is not finite, or because somebody looked at these measurements, ends at a round "
    "that depends on records; epsilon does not cover what that reveals.",
)
TIMES = "How long silos take, and when their messages come, is seen by the server; no epsilon covers what that reveals."
BITS = (
    "Releases are whole steps of a grid with exactly distributed noise; rounding is part of the sensitivity, and takes "
    "at most 0.2 % more noise. It is assumed that a row of a product of matrices depends on no other row's values."
)
OWN_CODE = (
    "{what}: code that is not this package's decides what is released, or what it is charged as. That it does what it "
    "says is taken on trust: no test of this package has seen it."
)
STATISTICAL_GENERATOR = "Noise comes from a statistical generator (SFC64), not a cryptographic one: see privacy.secure."


def statement(
    config: Config,
    account: PrivacyAccount,
    *,
    rules: PrivacyRules,
    accountant: Accountant,
    run: dict[str, Any],
    caveats: Sequence[str],
    notes: Sequence[str],
    lost: Sequence[dict[str, Any]] = (),
    measurements: Sequence[str] = MEASUREMENTS,
    revealed: bool = False,
    draws: bool = True,
) -> dict[str, Any]:
    """The guarantee, for whom, and on what assumptions.

    Args:
        run: id, status, reason and rounds.
        lost: silos that were lost while the run went on.
        measurements: what is computed from records without noise, and by whom it is seen.
        revealed: whether the server was given it.
        draws: whether this package drew who took part, and no platform.
    """
    views, release = account.views(), rules.release(1.0)
    return {
        "schema": STATEMENT_SCHEMA,
        "warnings": warnings(config, rules, revealed=revealed),
        "guarantee": _guarantee(rules, views),
        "run": run,
        "protects": {"unit": release.unit, "neighbouring": release.neighbouring},
        "mechanism": {
            "name": config.privacy.mechanism.name or config.privacy.mechanism.module,
            "clip": {**config.privacy.clip.model_dump(exclude_none=True), "what": rules.clipping.statement},
            "clip_norm": _finite(rules.clip_norm),
            "noise_multiplier": account.noise_multiplier,
            "noise_multiplier_solved": config.privacy.noise_multiplier is None,
            "schedule": {**config.privacy.schedule.model_dump(exclude_none=True), "what": rules.schedule.statement},
            "sampler": config.privacy.sampler,
            "record_rate": config.privacy.record_rate,
            "batch_size": config.privacy.batch_size,
            "secure": rules.secure,
            "formula": _formula(rules),
        },
        "beside": _beside(config, account),
        "max_participations": config.max_participations,
        "accountant": {"name": accountant.name, "error": accountant.error, "caveat": accountant.caveat},
        "budget": {
            "epsilon": config.privacy.epsilon,
            "delta": config.privacy.delta,
            "view": config.privacy.budget_view,
        },
        "views": views,
        "silos": account.per_silo(),
        "num_charges": len(account.ledger),
        "num_releases": sum(charge.count for charge in account.ledger),
        "head": account.ledger.head,
        "shared": _shared(account),
        "assumptions": [
            *ASSUMPTIONS,
            *(SECURE if rules.secure else SEEDED),
            *(SECURE_DRAWS if rules.secure and draws else ()),
            *(KNOWN_SEED if config.seed == 0 and not rules.secure and release.noise_multiplier else ()),
            *(ZERO_OUT if release.neighbouring == "add_or_remove" else ()),
            *(OUTSIDER if "outsider" in views else ()),
            *(EARLY_STOPPING if config.early_stopping is not None else ()),
            *(PERSONALISED if config.personalise is not None else ()),
            *(SHARED if account.shared is not None else ()),
            *(LOST if lost else ()),
        ],
        "lost": list(lost),
        "caveats": [
            *caveats,
            *(FAILURES if lost or run["status"] == "failed" else ()),
            *measurements,
            TIMES,
            *(() if _is_others(rules.mechanism) else (BITS,)),
            *_own_code(rules, accountant),
            *(() if rules.secure else (STATISTICAL_GENERATOR,)),
        ],
        "notes": list(notes),
    }


def _is_others(plugin: object) -> bool:
    """Whether the class of a plugin is not this package's."""
    return type(plugin).__module__.partition(".")[0] != "dpfl_plugin"


def _own_code(rules: PrivacyRules, accountant: Accountant) -> list[str]:
    parts = {"mechanism": rules.mechanism, "clip": rules.clipping, "accountant": accountant}
    found = [f"privacy.{key}" for key, plugin in parts.items() if _is_others(plugin)]
    return [OWN_CODE.format(what=", ".join(found))] if found else []


def warnings(config: Config, rules: PrivacyRules, *, revealed: bool) -> list[str]:
    """What has to be read before any number, first things first."""
    found = []
    if revealed:
        found.append(REVEALED.format(more=REVEALED_GRADIENTS * config.evaluation.dissimilarity))
    if not rules.secure and rules.release(1.0).noise_multiplier > 0:
        found.append(SIMULATION)
    return found


def _guarantee(rules: PrivacyRules, views: dict[str, Any]) -> str:
    if rules.clipping.measures:
        return f"none: {rules.clipping.statement}"
    noise = rules.release(1.0).noise_multiplier
    if noise == 0:
        return "none: no noise was added"
    if views["server"]["worst_case_epsilon"] is None:
        falls = ", as privacy.schedule changes it," if rules.varies else ""
        return f"none: noise_multiplier {noise:g}{falls} is too little for any epsilon to be stated"
    return "differential privacy, as stated in views"


def _shared(account: PrivacyAccount) -> dict[str, Any] | None:
    if account.shared is None or account.shared.path is None:
        return None
    return {
        "file": account.shared.path.name,
        "head": account.shared.head,
        "held_epsilon": _finite(account.held()),
        "num_runs": len(account.prior.runs),
        "num_same_records": sum(run["same_records"] for run in account.prior.runs),
        "runs": [
            {key: run[key] for key in ("name", "noise", "started", "same_records", "num_charges")}
            for run in account.prior.runs
        ],
    }


def _formula(rules: PrivacyRules) -> str:
    """A release in symbols: C is clip_norm, sigma noise_multiplier, b batch_size, s record_rate."""
    if rules.unit == "silo":
        return f"clip(update, C) + {'2 C' if rules.neighbouring == 'replace_one' else 'C'} sigma N(0, I)"
    factor, divisor = {"fixed": ("2 ", "b"), "poisson": ("", "(s n)"), "full": ("2 ", "n")}[rules.sampler.name]
    if rules.clipping.adapts:
        return (
            f"(sum over the batch of clip(gradient, C_i) + {factor}C_i sigma' N(0, I)) / {divisor}, with a noised "
            "count of the gradients within C_i; sigma' exceeds sigma by so much that both together are one Gaussian "
            "release with sigma"
        )
    return f"(sum over the batch of clip(gradient, C) + {factor}C sigma N(0, I)) / {divisor}"


def _beside(config: Config, account: PrivacyAccount) -> list[str]:
    """What silos release beside the rounds, in words."""
    lines, scores, own = [], account.beside.scores, config.personalise
    if scores is not None:
        lines.append(
            f"validation scores: a count of correct predictions on the last {_number(round(1 - scores.share[0], 12))} "
            f"of each silo's records (in a fixed random order), with noise of standard deviation "
            f"{_number(scores.noise_multiplier)}; {account.beside.num_scores} of each silo, planned in advance"
        )
    if own is not None:
        lines.append(f"silos' own models: {own.local_steps} more releases of each silo, in the end")
    return lines


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


# In words


def markdown(said: dict[str, Any]) -> str:
    """`privacy.md`: what `statement` says, for people. The same data give the same text."""
    parts, notes = [_title(said), *(f"**{text}**" for text in said["warnings"])], said["notes"]
    if said["guarantee"].startswith("none"):
        parts += [_unprotected(said)]
    else:
        parts += [_summary(said), _who(said), _how(said), _epsilons(said), *_total(said), _silos(said)]
        parts += [_list("Assumptions", "The numbers above hold if:", said["assumptions"])]
        parts += [_list("What is not covered", "", said["caveats"])]
        notes = [text for text in notes if text not in said["caveats"]]
    parts += [_list("Notes of this run", "", notes)] if notes else []
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
    return (
        f"# Privacy statement: {run['name']}\n\nRun `{run['id']}`, {run['rounds']} rounds at {run['num_silos']} silos, "
        f"{ended}{why}."
    )


def _unprotected(said: dict[str, Any]) -> str:
    why = said["guarantee"].removeprefix("none: ")
    return (
        f"**Nothing is protected**: {why}. Whoever sees a message or a model of this run may learn anything about any "
        "record: there is no epsilon. Treat the model, and everything in this folder, as you treat the records "
        "themselves."
    )


def _summary(said: dict[str, Any]) -> str:
    server, third_party = said["views"]["server"], said["views"]["third_party"]
    if server["neighbouring"] is None:
        return "Nothing was released: no silo sent anything, so nothing could be learned."
    what = {
        ("record", "replace_one"): "replacing any one record",
        ("record", "add_or_remove"): "counting any one record, or counting it as zero,",
        ("silo", "replace_one"): "replacing all the records of any one silo",
        ("silo", "add_or_remove"): "counting the update of any one silo, or counting it as zero,",
    }[said["protects"]["unit"], said["protects"]["neighbouring"]]
    return (
        f"In short: {what} changes the probability of whatever the server may see by a factor of at most "
        f"{_factor(server['epsilon'])}, up to an additional {_number(server['delta'])} (delta). For somebody who sees "
        f"the models only, the factor is {_factor(third_party['epsilon'])}. Epsilons here are rounded up."
        + _with_others(said)
    )


def _with_others(said: dict[str, Any]) -> str:
    if not said["shared"] or not said["shared"]["num_runs"]:
        return ""
    total = said["views"]["total"]
    return (
        " **Together with earlier runs on the same data** (below) the factors are "
        f"{_factor(total['server']['epsilon'])} and {_factor(total['third_party']['epsilon'])}."
    )


def _who(said: dict[str, Any]) -> str:
    unit, relation = said["protects"]["unit"], said["protects"]["neighbouring"]
    if unit == "record":
        unit_words = "One record of one silo. A person with several records is protected less: each record counts."
    else:
        unit_words = "The whole data set of one silo, and with it every record and every person in it."
    change = {
        ("record", "replace_one"): "one record of one silo had been any other",
        ("record", "add_or_remove"): "one record of one silo had counted as zero, or a zero as a record",
        ("silo", "replace_one"): "all records of one silo had been any others",
        ("silo", "add_or_remove"): "the update of one silo had counted as zero, or a zero as an update",
    }[unit, relation]
    folder = "" if said["mechanism"]["secure"] else "; and whoever has this folder, where the seed of the noise is"
    return (
        "## Who is protected, and against whom\n\n"
        f"* **What is protected** (`unit: {unit}`): {unit_words}\n"
        f"* **Compared with what** (`{relation}`): what is seen is nearly as likely as if {change}. The numbers of "
        "records and silos count as public.\n"
        "* **Against the server**: it follows the protocol, sees every message of every silo, and may compute what it "
        "likes from them. No silo's noise is counted in favour of another silo.\n"
        "* **Against third parties**: whoever is given all the models that the server made, and nothing else.\n"
        f"* **Not against**: a silo's own staff, who have its records{folder}."
    )


def _how(said: dict[str, Any]) -> str:
    mechanism = said["mechanism"]
    sampler = {
        "fixed": "a fixed number of records, drawn without replacement anew for each release",
        "poisson": "each record independently with a fixed probability, drawn anew for each release; it may be empty",
        "full": "all records of the silo",
        "with_replacement": "a fixed number of draws from all records, anew for each step",
    }[mechanism["sampler"]]
    sizes = [f"{key} {_number(mechanism[key])}" for key in ("record_rate", "batch_size") if mechanism[key] is not None]
    clipped = "each record's gradient" if said["protects"]["unit"] == "record" else "each silo's whole update"
    solved = ", solved for the budget" * mechanism["noise_multiplier_solved"]
    own = mechanism["clip"].get("name") == "adaptive"
    clip_norm = f"{'C_i at first' if own else 'C ='} {_number(mechanism['clip_norm'])}"
    lines = [
        "## How\n",
        f"Before anything left a silo, {clipped} was clipped, with {clip_norm}, and Gaussian noise was added. A "
        "release is\n",
        f"    {mechanism['formula']}\n",
        f"* mechanism: {mechanism['name']}, noise_multiplier sigma = {_number(mechanism['noise_multiplier'])}{solved} "
        "(noise standard deviation / L2 sensitivity under the relation above)",
        f"* schedule: {_schedule(mechanism['schedule'])}",
        f"* clipping: {mechanism['clip']['what']}",
        f"* batch (`sampler: {mechanism['sampler']}`): {sampler}{'; ' + ', '.join(sizes) if sizes else ''}",
        f"* releases: {said['num_releases']} in all, in {said['num_charges']} charges (a charge is what one silo "
        "released in one round); each was in the ledger, on disk, before it left",
    ]
    lines += [f"* {line}" for line in said["beside"]]
    if said["max_participations"] is not None:
        lines.append(f"* participation: a silo takes part in {said['max_participations']} rounds at most")
    if said["protects"]["unit"] == "silo":
        lines.append("* batches do not count here: a silo's update is protected whichever of its records it used")
    return "\n".join(lines)


def _schedule(schedule: dict[str, Any]) -> str:
    if schedule.get("name") == "constant":
        return str(schedule["what"])
    return f"{schedule['what']}; sigma is that of its beginning, and every release was charged with its own"


def _epsilons(said: dict[str, Any]) -> str:
    accountant, budget = said["accountant"], said["budget"]
    lines = ["## What was spent\n", *_table(said["views"])]
    if budget["epsilon"] is not None:
        of = "what the server sees" if budget["view"] == "server" else "what third parties see"
        with_others = ", other runs in the shared ledger included" if said["shared"] else ""
        lines.append(f"\nThe run was given a budget of epsilon {_number(budget['epsilon'])} for {of}{with_others}.")
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
    delta = _number(server["delta"])
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
    others = "1 other" if shared["num_runs"] == 1 else f"{shared['num_runs']} others"
    held = (
        f"Besides this run it holds {others}, which alone come to epsilon {_epsilon(shared['held_epsilon'])}."
        if shared["num_runs"]
        else "It holds no other run yet."
    )
    how = (
        " Runs on the same records at the same silos add up silo by silo. Of every other run the costliest silo "
        "counts, since any record may have been there."
        if shared["num_same_records"] < shared["num_runs"]
        else ""
    )
    lines = [
        "## Together with other runs on the same data\n",
        f"This run shares a ledger with other runs. {held}{how} What other runs add to it after this was written adds "
        "to these numbers. All together:\n",
        *_table(said["views"]["total"]),
    ]
    return ["\n".join(lines)]


def _silos(said: dict[str, Any]) -> str:
    silos, total = said["silos"], said["shared"] is not None
    if silos is None:
        return (
            "## Each silo, towards the server\n\nWhat single silos spent tells how often they took part. It is not "
            "published here, since something is claimed of an outsider who does not know that: see `details.json`."
        )
    worst = said["views"]["server"]["worst_silo"]
    shown = silos if len(silos) <= _MOST_SILOS else silos[:_MOST_SILOS]
    lines = ["## Each silo, towards the server\n"]
    lines += ["| silo | records | rounds | epsilon |" + " epsilon with other runs |" * total]
    lines += ["| --- | --- | --- | --- |" + " --- |" * total]
    for silo in [*shown, *(s for s in silos[len(shown) :] if s["silo"] == worst)]:
        cells = [silo["silo"], silo["num_records"], silo["rounds"], _silo_number(silo["epsilon"], said)]
        cells += [_silo_number(silo["total_epsilon"], said)] if total else []
        lines.append(f"| {' | '.join(map(str, cells))} |")
    if len(shown) < len(silos):
        lines.append("\nThe first silos, and the one that spent most; `ledger.json` has all of them.")
    return "\n".join(lines)


def _list(title: str, opening: str, items: Sequence[str]) -> str:
    body = "\n".join(f"* {_sentence(item)}" for item in items)
    return "\n\n".join(part for part in (f"## {title}", opening, body) if part)


def _sentence(text: str) -> str:
    """With a capital letter, unless it begins with a name of the configuration."""
    return text if "_" in text.split()[0] else text[0].upper() + text[1:]


def _verify(said: dict[str, Any]) -> str:
    shared = said["shared"]
    if "oracle" in said["run"]:
        file = said["run"]["oracle"]
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
        "later whether lines are missing at the end, also where the files next to it were set back with it.",
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
    elif said["mechanism"]["secure"]:
        model = "So may the model, at the epsilon that is stated here"
    else:
        model = (
            "The model of a simulation has no epsilon towards whoever knows or guesses the seed (above): run it with "
            "privacy.secure before you publish it"
        )
    return (
        "`ledger.json` holds every number of this page for programs. These two files may be published. "
        f"{model}. No epsilon covers any other file of the run's folder."
    )


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.15g}"


def _epsilon(value: float | None) -> str:
    """Four digits, rounded up; none where nothing is guaranteed."""
    if not value:
        return "none" if value is None else "0"
    rounded = Context(prec=4, rounding=ROUND_CEILING).create_decimal_from_float(value)
    return f"{float(rounded):g}"


def _factor(epsilon: float | None) -> str:
    """What epsilon means, as a power of e and in plain digits."""
    return f"e^{_epsilon(epsilon)}" + ("" if epsilon is None else f" ({odds(epsilon)})")


def _silo_number(value: float | None, said: dict[str, Any]) -> str:
    if value is None and said["views"]["server"]["epsilon"] is not None:
        return "at most the worst"  # not worked out for each of many kinds of silos
    return _epsilon(value)
