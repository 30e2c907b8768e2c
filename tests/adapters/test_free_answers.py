"""What a server learns, uncharged, from whether a silo within its owner's limits takes part: nothing of the records."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dpfl_plugin.adapters import Message, Server, Silo, agree
from dpfl_plugin.adapters import owner as owner_module
from dpfl_plugin.adapters.records import silo_for, silo_of
from dpfl_plugin.adapters.replies import failure, refusal
from dpfl_plugin.adapters.stated_records import as_stated
from dpfl_plugin.errors import DpflError, LimitError, UnsupportedError
from dpfl_plugin.models.fields import Field, Fields
from dpfl_plugin.owners.limits import Limits
from dpfl_plugin.privacy.samplers import FixedSize
from tests.adapters.federation import block, over_the_wire
from tests.adapters.test_faults import module

SOLVED = {"epsilon": 3.0, "delta": 1e-5, "record_rate": 0.25}
STATED: dict[str, Any] = {"min_records": 40, "num_classes": 3, "ranges": ((-10.0, 10.0),)}


@pytest.fixture(autouse=True)
def said_anew() -> None:
    owner_module.say_once.cache_clear()


def data(size: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(size, 5, generator=rng).double(), torch.arange(size) % 3


def limits_of(folder: Path, **more: Any) -> Limits:
    return Limits(**{"folder": folder, "epsilon": 50.0, "delta": 1e-3, "source": "limits.yaml", **STATED, **more})


def answer_of(
    folder: Path,
    records: Any,
    model: nn.Module | None = None,
    settings: dict[str, Any] | None = None,
    limits: Limits | None = None,
) -> dict[str, Any]:
    """All that a server hears in the first round of an agreement, but for what is noised and random names."""
    made = module() if model is None else model
    values = {**block(privacy=SOLVED, rounds=2), **(settings or {})}
    message = Server(agree(values, num_silos=1, model=made), made).begin()
    assert message is not None
    message = over_the_wire(message)
    limits, agreement, reply = limits or limits_of(folder), None, Message({})
    try:
        agreement = agree(values, num_silos=1, model=made, permit=limits.check_settings)
        with Silo(agreement, 0, made, records, limits=limits) as silo:
            reply = silo.answer(message)
    except LimitError as error:
        reply = refusal(agreement, 0, message, error)
    except DpflError:
        reply = failure(agreement, 0, message)
    return {key: value for key, value in reply.header.items() if key != "tag"}


def rated(**privacy: Any) -> dict[str, Any]:
    return {"privacy": {"record_rate": None, **{k: v for k, v in SOLVED.items() if k != "record_rate"}, **privacy}}


ASKED: dict[str, list[dict[str, Any]]] = {
    "num_records": [{"num_records": number} for number in (40, 41, 44, 52, 61, 90)],
    "batch_size": [rated(batch_size=number) for number in (5, 40, 41, 52, 61, 90)],
    "record_rate": [rated(record_rate=rate) for rate in (0.3, 1 / 40, 1 / 41, 1 / 52, 1 / 61, 1 / 90)],
    "noise": [{"privacy": {"noise_multiplier": s, "delta": 1e-5, "record_rate": 0.26}} for s in (0.6, 1.0, 3.0)],
    "noise of a batch": [rated(epsilon=None, noise_multiplier=s, batch_size=7) for s in (0.6, 1.0, 3.0)],
}


@pytest.mark.parametrize("what", ASKED)
def test_questions_reveal_no_number_of_records(tmp_path: Path, what: str) -> None:
    """Ten of them revealed n by halves: `failed` if and only if n < num_records, and so on; and the epsilon that came
    with each answer was that of floor(s n) / n."""
    for number, settings in enumerate(ASKED[what]):
        heard = [
            answer_of(tmp_path / f"{number}-{size}", data(size), settings=settings) for size in (3, 40, 41, 52, 61, 89)
        ]
        assert all(one == heard[0] for one in heard), settings
        assert heard[0]["status"] == "upload" or heard[0]["reason"] == "not within this owner's limits"


def test_models_of_some_outputs_reveal_no_labels(tmp_path: Path) -> None:
    """ "Is there a label of K or more?" """
    for outputs in (1, 2, 3, 4, 7):
        model = nn.Linear(5, outputs).double()
        heard = []
        for most in (1, 2, 4, 9):
            x, y = data(50)
            y[7] = most
            heard.append(answer_of(tmp_path / f"{outputs}-{most}", (x, y), model, {"rounds": 1}))
        assert all(one == heard[0] for one in heard)
        assert heard[0]["status"] == ("upload" if outputs >= 3 else "refused")


ODD: dict[str, Any] = {
    "not a number": lambda x, y: x[3, 2:4].fill_(float("nan")),
    "infinite": lambda x, y: x[0].fill_(float("inf")),
    "out of range": lambda x, y: x[9].fill_(1e200),
    "no class": lambda x, y: y[5:8].copy_(torch.tensor([-1, 3, -100])),
    "all of them": lambda x, y: x.fill_(float("nan")),
}


@pytest.mark.parametrize("odd", ODD)
def test_no_content_of_a_record_makes_a_silo_fail_and_its_owner_hears_of_it(
    tmp_path: Path, odd: str, caplog: pytest.LogCaptureFixture
) -> None:
    x, y = data(60)
    ODD[odd](x, y)
    assert answer_of(tmp_path / "a", (x, y)) == answer_of(tmp_path / "b", data(60, seed=1))
    (warning,) = (record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)
    assert warning.startswith("silo 0: not all records are as limits.yaml says") and str(tmp_path / "b") not in warning
    (said,) = tmp_path.rglob("records.txt")
    assert said.is_relative_to(tmp_path / "a") and " of 60 records have a " in said.read_text()


def test_records_that_are_not_as_stated_add_nothing(tmp_path: Path) -> None:
    """They keep their place: the model goes on as if their gradients were 0, with the same batches and divisors."""

    x, y = data(60)
    x[3, 1], x[4, 0], y[5] = float("nan"), 11.0, 3
    found = silo_for((x, y), module, limits=limits_of(tmp_path), notes=(notes := []))
    assert found.usable is not None and list(np.flatnonzero(~found.usable)) == [3, 4, 5] and len(notes) == 3
    good = found.usable
    plain = silo_of((x[good], y[good]), module())
    np.testing.assert_array_equal(found.train_x[good], plain.train_x)
    assert np.isfinite(found.train_x).all() and not found.train_x[~good].any() and not found.train_y[~good].any()
    few = silo_for(data(7), module, limits=limits_of(tmp_path))
    assert few.train_x.shape == (40, 5) and few.usable is not None and list(few.usable) == [True] * 7 + [False] * 33


def test_words_are_checked_by_the_owners_file(tmp_path: Path) -> None:
    """ "Is there a word of 100 or more?", by an Embedding of 100."""
    made = nn.Sequential(nn.Embedding(100, 4), nn.Flatten(), nn.Linear(12, 3))
    settings, y = {"privacy": {"noise_multiplier": 1.5, "delta": 1e-5, "record_rate": 0.25}}, torch.arange(50) % 3
    for most, status in ((99, "upload"), (100, "refused"), (None, "refused")):
        limits = limits_of(tmp_path / str(most), ranges=None if most is None else ((0.0, float(most)),))
        heard = []
        for number, word in enumerate((5, 99, 100, 10**9)):
            x = torch.arange(150).reshape(50, 3) % 90
            x[8, 1] = word
            apart = limits_of(limits.folder / str(number), ranges=limits.ranges)
            heard.append(answer_of(tmp_path, (x, y), made, settings, apart))
        assert all(one == heard[0] for one in heard) and heard[0]["status"] == status


def test_records_that_are_none_of_the_models_fields_add_nothing(tmp_path: Path) -> None:
    fields = Fields(ids=Field((2,), below=50), age=Field())
    x = np.array([[1, 49, 0.5], [1, 50, 0.5], [0.5, 1, 0.5], [-1, 1, 0.5], [2, 3, 70.0]])
    limits = limits_of(tmp_path, min_records=None, ranges=((0.0, 60.0), (0.0, 60.0), (0.0, 60.0)))
    found, y, usable, notes = as_stated(x, np.ones(5, np.int64), None, limits, fields)
    assert usable is not None and list(usable) == [True, False, False, False, False] and len(notes) == 2
    assert not found[1:].any() and not y[1:].any()
    with pytest.raises(LimitError, match="ranges has 2 pairs, and a record has 3 features"):
        as_stated(x, y, None, limits_of(tmp_path, ranges=((0.0, 1.0), (0.0, 1.0))), None)


MISSING = {
    "min_records": "privacy.record_rate=0.25 can be had depends on how many records there are",
    "num_classes": "a model that tells 3 classes apart fits the records depends on their labels",
}


@pytest.mark.parametrize("key", MISSING)
def test_what_the_owners_file_does_not_say_is_not_read_from_the_records(tmp_path: Path, key: str) -> None:
    limits = limits_of(tmp_path, **{key: None})
    with pytest.raises(LimitError, match=f"limits.yaml: {key} is missing: .*{MISSING[key]}"):
        Silo(agree(block(privacy=SOLVED), num_silos=1, model=module()), 0, module(), data(60), limits=limits)
    poisson = {"privacy": {**SOLVED, "sampler": "poisson"}}
    if key == "min_records":  # where no setting asks for a number of records none is needed
        assert answer_of(tmp_path, data(60), settings=poisson, limits=limits)["status"] == "upload"


def test_a_refusal_says_nothing_of_other_studies(tmp_path: Path) -> None:
    """Not what they spent, nor that it is what they spent, and not a limit, for which this asks too much."""
    limits = limits_of(tmp_path, epsilon=4.0)
    answers = [answer_of(tmp_path, data(60), settings={"seed": seed}, limits=limits) for seed in range(6)]
    assert answers[0]["status"] == "upload"
    spent = answers[-1]
    above = answer_of(tmp_path, data(60), settings=rated(epsilon=5.0, record_rate=0.25), limits=limits)
    assert {key: spent[key] for key in ("status", "reason")} == {key: above[key] for key in ("status", "reason")}
    assert spent["reason"] == "not within this owner's limits"


def test_rates_that_are_charged_cover_those_of_the_batches() -> None:
    for least in (3, 10, 41):
        for rate in (0.34, 0.5, 1.0):
            charged = {FixedSize(rate, least_records=least).rate(n) for n in range(least, 200)}
            assert len(charged) == 1 and max(FixedSize(rate).rate(n) for n in range(least, 200)) <= charged.pop()
        charged = {FixedSize(None, 3, least_records=least).rate(n) for n in range(least, 200)}
        assert charged == {FixedSize(None, 3).rate(least)}
    with pytest.raises(UnsupportedError, match="batch_size=3 of a share"):
        FixedSize(None, 3, least_records=10).rate(9)
