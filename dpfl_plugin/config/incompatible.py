"""What does not go together: one table, which the check, the documentation and the tests read.

A feature is a setting as a user writes it: ``key=value``; ``key!=value,value`` for any other value; ``key<number``; or
``key`` alone for whatever value, where there is none by default. What is not a key is what a configuration is used for
(`USES`).
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any, Final

from dpfl_plugin.config.blocks import Block
from dpfl_plugin.errors import ConfigError

if TYPE_CHECKING:
    from dpfl_plugin.config.schema import Config

USES: Final = {
    "ledger": "`privacy.ledger` or `--ledger`, which several runs share",
    "tune": "`dpfl tune`",
    "forecast": "`dpfl plan`, and `dpfl account` of a configuration",
    "audit": "`dpfl audit`",
    "attack": "`dpfl attack`",
    "limits": "limits that owners have set on their machines",
    "platform": "FedML, Flower, NVFlare and `dpfl server`",
    "PrivateOracle": "a training loop of your own",
}
EXTRA_RELEASES: Final = ("early_stopping", "private_evaluation", "personalise", "private_statistics")

_NOT_PLANNED: Final = "what is released beside the rounds is not planned together with it; this is not implemented"
_ONE_NOISE: Final = "it is planned with one noise for all silos; a noise for each is not implemented"
_SCORE_OF_A_SILO: Final = (
    "a silo's score depends on all of its validation records at once, and a share of a silo is no part of it that "
    "would compose in parallel. Use unit: record"
)
_ALONE: Final = "what is known there is of releases that stand each for itself. Use sampler: fixed"
_ROUNDS_ONLY: Final = "only what rounds release is looked at. Leave it out"
_RATE_ALONE: Final = "such a batch is a share of the records, for which the rate is needed. Use record_rate"
_ALL_RECORDS: Final = "a batch is all records. Leave it out, or use sampler: fixed"
_ON_ONE_MACHINE: Final = "no platform carries releases beside the rounds; this is not implemented. Use dpfl run"
_EVERY_ROUND: Final = "silos take part in every round of a cycle. Leave it out, or use sampler: fixed"
_SILO_BY_SILO: Final = "views are made silo by silo; of several silos at once is not implemented. Leave one of them out"
_PUBLISHES_SIZES: Final = (
    "the weights publish each silo's number of records, which is what add-or-remove neighbours differ in. Use "
    "silo_weights: equal, or sampler: fixed"
)

_TABLE: Final[dict[str, dict[str, str]]] = {
    "privacy.epsilon": {
        "privacy.noise_multiplier=0": "without noise no epsilon holds. Leave epsilon out (privacy.epsilon=null), or "
        "give more noise"
    },
    "privacy.sampler=full": dict.fromkeys(
        ("privacy.record_rate", "privacy.batch_size", "silos.*.record_rate", "silos.*.batch_size"), _ALL_RECORDS
    ),
    "privacy.sampler=poisson": {
        "privacy.batch_size": _RATE_ALONE,
        "silos.*.batch_size": _RATE_ALONE,
        "silo_weights=records": _PUBLISHES_SIZES,
        "silo_weights=noise": _PUBLISHES_SIZES,
    },
    "privacy.sampler=with_replacement": {
        "privacy.unit!=silo": "a record that is drawn twice moves a sum twice as far, and nothing is proven of that. "
        "Use sampler: fixed, or unit: silo, where batches do not count"
    },
    "privacy.record_rate": {
        "privacy.batch_size": "both say how large a batch is. Give one of them; a key that is null counts as left out"
    },
    "privacy.shared_persons=per_silo": {"privacy.unit!=person": "it is for unit: person. Leave it out"},
    "privacy.max_records_per_person": {"privacy.unit!=person": "it is for unit: person. Leave it out"},
    "privacy.bands": {"privacy.sampler!=cyclic": "it is for sampler: cyclic. Leave it out"},
    "privacy.unit=silo": {
        "early_stopping": _SCORE_OF_A_SILO,
        "private_evaluation": _SCORE_OF_A_SILO,
        "personalise": "a silo's own model is trained on gradients, which are not private by themselves at this unit. "
        "Use unit: record",
        "private_statistics": "what all records of a silo together may add is bounded by nothing but their number. "
        "Use unit: record",
        "privacy.clip=auto_s": "an update that is stretched to clip_norm is as long at the optimum as anywhere. Use "
        "clip: flat or per_layer",
        "privacy.clip=adaptive": "a silo's update is one vector a round, and tells no quantile of norms. Use clip: "
        "flat or per_layer",
        "privacy.clip=median": "a silo's update is one vector, and its median is its norm. Use clip: flat or per_layer",
    },
    "privacy.schedule!=constant": {
        **dict.fromkeys(EXTRA_RELEASES, f"{_NOT_PLANNED}. Use schedule: constant"),
        "privacy.clip.bit_noise_multiplier": "it has to exceed the noise of every release, which the schedule changes. "
        "Leave bit_noise_multiplier out",
    },
    "privacy.sampler=cyclic": {
        "silo_rate<1": _EVERY_ROUND,
        "max_participations": _EVERY_ROUND,
        **dict.fromkeys(EXTRA_RELEASES, f"{_NOT_PLANNED}. Use sampler: fixed"),
        "runtime.on_silo_failure=continue": "the rounds after a loss get other noise, and what came before them would "
        "be in both. Use abort, or sampler: fixed",
        "algorithm.server_optimizer=fedexp": "it takes the noise of a round's releases for independent. Use momentum, "
        "or sampler: fixed",
        "privacy.accountant!=pld,rdp,prv,gaussian": "it may not know of cycles. Use pld, or sampler: fixed",
        "privacy.unit!=record": "what a record does to the sums of a cycle is all that is proven. Use unit: record, or "
        "sampler: fixed",
        "privacy.mechanism!=gaussian": "Gaussian noise is all that is proven. Use gaussian, or sampler: fixed",
        "privacy.schedule!=constant": "the noise of a cycle is that of all of its steps. Use schedule: constant",
        "privacy.clip!=flat,per_layer": "every step of a cycle has to have the same clipping norm. Use clip: flat",
        "privacy.randomness=fresh": "a round that a crash cuts off would be released once more, with other noise, and "
        "what came before it would be in both. Name a seed, for a simulation, or use sampler: fixed",
    },
    "augmentation": {
        "privacy.unit=person": "views of a person's records are not proven. Use unit: record",
        "privacy.sampler=cyclic": "cycles are proven for records as they are. Use sampler: fixed",
        "runtime.lockstep": _SILO_BY_SILO,
        "runtime.graphs": _SILO_BY_SILO,
    },
    "silos": {
        "privacy.unit=silo": "every update has the same noise there. Leave silos out",
        "privacy.unit=person": "single silos' settings are proven for records. Leave silos out, or use unit: record",
        "privacy.budget_view=third_party": "silos' own budgets bound the server. Leave budget_view out",
        "privacy.schedule!=constant": "one schedule cannot fit several budgets. Use schedule: constant",
        "privacy.clip!=flat,per_layer": "it sets the clipping norm of all silos. Use clip: flat",
        "privacy.mechanism!=gaussian": "only gaussian has noise silo by silo. Use gaussian",
        "privacy.sampler=cyclic": f"{_ONE_NOISE}. Use sampler: fixed",
        "silo_rate<1": "the amplification by drawn silos is claimed for equal noise. Leave silo_rate out",
        **dict.fromkeys(EXTRA_RELEASES, f"{_ONE_NOISE}. Leave one of them out"),
        "runtime.lockstep": "silos of a stack have one clipping norm. Leave lockstep out",
        "runtime.graphs": "silos of a stack have one clipping norm. Leave graphs out",
    },
    "silo_weights=noise": {"privacy.noise_multiplier=0": "there is no variance to weigh by. Use silo_weights: records"},
    "early_stopping": {
        "private_evaluation": "the scores that stop a run are private already. Leave private_evaluation out"
    },
    "private_evaluation.at": {"private_evaluation.every": "both say after which rounds. Leave one of them out"},
    "private_evaluation.measure=clipped_share": {
        "privacy.clip!=flat,per_layer": "no gradient is cut at a public norm. Leave measure out, or use clip: flat",
        "privacy.clip_norm=inf": "no gradient is cut. Leave measure out, or give clip_norm",
        "augmentation": "what is cut is the mean of random views. Leave one of them out",
    },
    "private_evaluation.bins": {"private_evaluation.measure!=auc": "bins are for measure: auc. Leave bins out"},
    "private_statistics": {
        "data.preprocess": "statistics are of columns as the schema makes them. Leave preprocess out",
        "data.memory_map": "scaled records are in memory. Leave memory_map out",
    },
    "private_statistics.outcome": dict.fromkeys(
        ("algorithm=mr_mtl", "algorithm=local"), "silos' own models would not begin with it. Leave outcome out"
    ),
    "class_weights=balanced": {
        "augmentation": "classes are counted of records as they are. Give class_weights as numbers",
    },
    "algorithm=scaffnew": {"silo_rate<1": "every silo needs every mean. Leave silo_rate out, or use scaffold"},
    "runtime.lockstep": {"runtime.stack=1": "there is nothing to stack. Raise stack, or leave it out"},
    "runtime.graphs": {
        "runtime.device=cpu": "graphs are CUDA's. Leave graphs out",
        "runtime.lockstep=false": "a graph is of the sums of a whole stack. Leave one of them out",
    },
    "runtime.on_silo_failure=continue": {
        "runtime.aggregation=reduce": "a sum computed by MPI fails with the first rank that dies. Use aggregation: "
        "gather"
    },
    "ledger": {
        "silos": "runs are composed whose silos have one noise; others are not implemented. Leave silos out",
        "privacy.sampler=cyclic": "runs may come between each other. Use sampler: fixed",
        "privacy.shared_persons=per_silo": "a person may be at several silos, and what is said of several runs "
        "together counts one silo of each. Leave ledger out, or bring each person to one silo",
        "privacy.randomness=seeded": "it counts what really was released, and noise that follows from a seed protects "
        "nothing. Leave ledger out, or use randomness: fresh",
    },
    "tune": {
        "privacy.noise_multiplier": "it is solved for, such that all candidates together fit privacy.epsilon. Leave it "
        "out; without noise nothing is charged: use dpfl sweep",
        "privacy.budget_view=third_party": "the server sees every candidate. Leave budget_view out",
        "privacy.unit=silo": "scores of a silo are no part of it. Use unit: record or person",
        "privacy.schedule!=constant": "candidates have one noise for all rounds. Use schedule: constant",
        "privacy.sampler=cyclic": f"{_NOT_PLANNED}. Use sampler: fixed",
        "privacy.ledger_epsilon": "a tuning has a ledger of its own, which privacy.epsilon bounds. Leave it out",
        "silos": f"{_ONE_NOISE}. Leave silos out",
        "max_participations": "a silo counts as in every round. Leave it out",
        "early_stopping": "rungs end candidates. Leave it out",
        "private_evaluation": "a tuning has scores of its own, by tune.share. Leave it out",
        "personalise": "every candidate would release it. Leave it out, and train the winner's values with it",
        "evaluation.reveal=server": "no epsilon covers it. Leave reveal out",
        "runtime.kind!=auto,in_process": "candidates run in one process. Use kind: auto",
        "trackers": "they would be told of every candidate. Leave them out",
    },
    "forecast": {
        "silos": "it is of silos that all have the same settings; others are not implemented. Leave silos out; dpfl "
        "check says which noise each of them has"
    },
    "audit": {
        **dict.fromkeys(EXTRA_RELEASES, _ROUNDS_ONLY),
        "silos": "silos that have the same noise are compared. Leave silos out",
        "privacy.sampler=cyclic": _ALONE,
        "privacy.schedule!=constant": "all releases weigh alike, which is right for noise that does not change. Use "
        "schedule: constant; sampler, clipping, mechanism and algorithm are tried all the same",
    },
    "attack": {
        **dict.fromkeys(EXTRA_RELEASES, _ROUNDS_ONLY),
        "silos": "its bound is that of silos that have the same noise. Leave silos out",
        "privacy.sampler=cyclic": _ALONE,
        "privacy.unit!=record": "these attacks are on records. Use unit: record",
        "augmentation": "attacks know gradients of records as they are. Leave it out",
    },
    "limits": {
        "privacy.sampler=cyclic": "limits are agreed on release by release. Use sampler: fixed",
        "silos": "they are checked for silos that all have the same settings; others are not implemented. Leave silos "
        "out",
    },
    "platform": {
        "privacy.sampler=cyclic": "a silo may be asked for the same round twice, or for none. Use sampler: fixed",
        **dict.fromkeys(EXTRA_RELEASES, _ON_ONE_MACHINE),
        "private_statistics": f"{_ON_ONE_MACHINE}, or leave them out (private_statistics=null)",
        "augmentation": "views of images are not implemented there. Use dpfl run, also on MPI ranks",
        "class_weights": "losses are those of the platform's silos; weights are not implemented there. Use dpfl run",
        "trackers": "give them as callbacks to what the server is made by: Server, PrivateStrategy or private_runner",
        "silos": "all silos agree on one budget and one noise. Give each owner limits instead",
        "privacy.ledger": "each site has a ledger of its own there. Leave it out",
        "privacy.ledger_epsilon": "owners' limits bound agreements there, and no ledger does. Leave it out",
        "privacy.unit=person": "a platform's data sets do not say whose records they are. Use unit: record, with one "
        "record of each person, or unit: silo; dpfl run protects persons, also on MPI ranks",
        "privacy.budget_view=third_party": "who takes part is the platform's public choice, for which no "
        "amplification is claimed. Leave it out: what holds towards the server holds towards all",
    },
    "PrivateOracle": {
        "privacy.ledger": "an oracle's ledger is an argument. Give ledger=FILE",
        "privacy.unit!=record": "an oracle protects records. Use unit: record",
        "privacy.budget_view=third_party": "who has an oracle's releases sees all of them, as a server does. Leave "
        "it out",
        "privacy.sampler=cyclic": "a ledger composes releases with those of earlier oracles. Use sampler: fixed",
    },
}
INCOMPATIBLE: Final = {(first, second): why for first, others in _TABLE.items() for second, why in others.items()}


def check_compatible(config: Config, use: str = "", source: str = "") -> None:
    """Check that the features of a configuration go together, and with what it is used for.

    Args:
        use: one of `USES`. source: what the message begins with.

    Raises:
        ConfigError: two do not; the message says why, and what to do instead.
    """
    for first, others in _TABLE.items():
        if first != use and not has(config, first):
            continue
        for second, reason in others.items():
            if has(config, second):
                shown = f"{_shown(first, config)} does not go with {_shown(second, config)}"
                raise ConfigError(f"{source}{': ' * bool(source)}{shown}: {reason}.")


def has(config: Config, feature: str) -> bool:
    """Whether a configuration has a feature that is no use of it."""
    key, operator, text = _parsed(feature)
    value = _value(config, key)
    match operator:
        case "=":
            return _text(value) == text
        case "!=":
            return _text(value) not in text.split(",")
        case "<":
            return bool(value < float(text))
    return value is not None and value is not False and value not in ({}, [])


@functools.cache
def _parsed(feature: str) -> tuple[str, str, str]:
    key, operator, text = re.split(r"(!=|=|<|$)", feature, maxsplit=1)
    return key, operator, text


def _value(part: Any, path: str) -> Any:
    """Of a key below a part of a configuration; None where it is not there. ``*`` is any key."""
    key, _, rest = path.partition(".")
    if key == "*":
        return next((value for item in part.values() if (value := _value(item, rest)) is not None), None)
    value = part.options.get(key) if isinstance(part, Block) else getattr(part, key, None)
    return _value(value, rest) if rest else value


def _text(value: Any) -> str:
    if isinstance(value, Block):
        return str(value.name or value.module)
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def _shown(feature: str, config: Config) -> str:
    key, _, _ = _parsed(feature)
    value = _value(config, key)
    return f"{key}={_text(value)}" if isinstance(value, Block | bool | int | float | str) else feature
