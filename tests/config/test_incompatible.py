"""Each row of the table once: two features are refused with its words, and each of them alone is accepted."""

from __future__ import annotations

from typing import Any, Final

import pytest

from dpfl_plugin.config.incompatible import INCOMPATIBLE, USES, check_compatible, has
from dpfl_plugin.config.load import configure, merged, parse_setting
from dpfl_plugin.config.schema import Config
from dpfl_plugin.errors import ConfigError

BASE: Final = {
    "algorithm": {"name": "fedavg", "local_steps": 1, "local_lr": 0.1},
    "privacy": {"noise_multiplier": 2.0},
    "rounds": 4,
    "seed": 1,
}
EXAMPLES: Final[dict[str, dict[str, Any]]] = {
    "augmentation": {"augmentation": {"views": 2, "flip": True}},
    "class_weights": {"class_weights": {"yes": 2.0}},
    "data.memory_map": {"data": {"memory_map": "records"}},
    "data.preprocess": {"data": {"preprocess": ["unit_norm"]}},
    "early_stopping": {"early_stopping": {"every": 1, "noise_multiplier": 9.0}},
    "max_participations": {"max_participations": 2},
    "personalise": {"personalise": {"local_steps": 1, "local_lr": 0.1}},
    "privacy.accountant!=pld,rdp,prv,gaussian": {"privacy": {"accountant": {"module": "my:accountant"}}},
    "privacy.bands": {"privacy": {"sampler": "cyclic", "bands": 2}},
    "privacy.batch_size": {"privacy": {"batch_size": 8}},
    "privacy.clip!=flat,per_layer": {"privacy": {"clip": "adaptive"}},
    "privacy.clip.bit_noise_multiplier": {"privacy": {"clip": {"name": "adaptive", "bit_noise_multiplier": 9.0}}},
    "privacy.epsilon": {"privacy": {"epsilon": 4.0}},
    "privacy.ledger": {"privacy": {"ledger": "ledger.jsonl"}},
    "privacy.ledger_epsilon": {"privacy": {"ledger_epsilon": 4.0}},
    "privacy.max_records_per_person": {"privacy": {"unit": "person", "max_records_per_person": 2}},
    "privacy.mechanism!=gaussian": {"privacy": {"mechanism": {"module": "my:mechanism"}}},
    "privacy.noise_multiplier": {"privacy": {"noise_multiplier": 2.0}},
    "privacy.record_rate": {"privacy": {"record_rate": 0.5}},
    "privacy.sampler!=cyclic": {"privacy": {"sampler": "fixed"}},
    "privacy.sampler=with_replacement": {"privacy": {"sampler": "with_replacement", "unit": "silo"}},
    "privacy.schedule!=constant": {"privacy": {"schedule": {"name": "geometric", "beta": 0.9}}},
    "privacy.shared_persons=per_silo": {
        "privacy": {"unit": "person", "max_records_per_person": 2, "shared_persons": "per_silo"}
    },
    "privacy.unit!=person": {"privacy": {"unit": "record"}},
    "privacy.unit!=record": {"privacy": {"unit": "silo"}},
    "privacy.unit!=silo": {"privacy": {"unit": "record"}},
    "privacy.unit=person": {"privacy": {"unit": "person", "max_records_per_person": 2}},
    "private_evaluation": {"private_evaluation": {"noise_multiplier": 9.0}},
    "private_evaluation.at": {"private_evaluation": {"noise_multiplier": 9.0, "at": [2]}},
    "private_evaluation.bins": {"private_evaluation": {"noise_multiplier": 9.0, "measure": "auc", "bins": 4}},
    "private_evaluation.every": {"private_evaluation": {"noise_multiplier": 9.0, "every": 2}},
    "private_evaluation.measure!=auc": {"private_evaluation": {"noise_multiplier": 9.0, "measure": "accuracy"}},
    "private_evaluation.measure=clipped_share": {
        "private_evaluation": {"noise_multiplier": 9.0, "measure": "clipped_share"}
    },
    "private_statistics": {"private_statistics": {"noise_multiplier": 9.0}},
    "private_statistics.outcome": {"private_statistics": {"noise_multiplier": 9.0, "outcome": True}},
    "runtime.graphs": {"runtime": {"graphs": True, "device": "cuda"}},
    "runtime.kind!=auto,in_process": {"runtime": {"kind": "mpi"}},
    "runtime.lockstep": {"runtime": {"lockstep": True}},
    "silo_rate<1": {"silo_rate": 0.5},
    "silos": {"silos": {"a": {"noise_multiplier": 3.0}}},
    "silos.*.batch_size": {"silos": {"a": {"batch_size": 8}}},
    "silos.*.record_rate": {"silos": {"a": {"record_rate": 0.5}}},
    "trackers": {"trackers": ["tensorboard"]},
    "tune": {"privacy": {"noise_multiplier": None, "epsilon": 4.0}},
}
"""A change of `BASE` that has the feature; ``key=value`` is one itself."""


def example(feature: str) -> dict[str, Any]:
    return EXAMPLES[feature] if feature in EXAMPLES else {} if feature in USES else parse_setting(feature)


def made(*features: str) -> Config:
    return configure(merged(BASE, *(example(feature) for feature in features)), source="test")


@pytest.mark.parametrize(("first", "second"), INCOMPATIBLE, ids=map(" and ".join, INCOMPATIBLE))
def test_two_features_are_refused_with_the_words_of_the_row(first: str, second: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_compatible(made(first, second), first)
    left, _, right = str(refused.value).partition(" does not go with ")
    for shown, feature in ((left.removeprefix("test: "), first), (right, second)):
        assert shown.startswith(feature.partition("!")[0].partition("<")[0])
    assert right.endswith(f": {INCOMPATIBLE[first, second]}.")


@pytest.mark.parametrize("feature", sorted({feature for row in INCOMPATIBLE for feature in row}))
def test_each_feature_alone_is_accepted(feature: str) -> None:
    config = made(feature, *["privacy.randomness=fresh"] * (feature == "ledger"))
    check_compatible(config, feature)
    assert feature in USES or has(config, feature)
