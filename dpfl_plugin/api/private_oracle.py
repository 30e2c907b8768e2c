"""`dpfl.PrivateOracle`: private gradients of one silo's records, for a training loop of one's own.

Nothing here makes noise, clips or composes: `dpfl_plugin.oracle` answers, `PrivacyAccount` decides what the budget
allows, and what is charged is a line of a shared ledger, as if each oracle were a run. So a ledger that is opened again
counts all that earlier oracles and runs released, `dpfl account` adds it up, and `dpfl.train(ledger=...)` may share it.

A release is computed, charged, on the disk, and only then handed out. A process that ends between has charged more than
left, never less. Fresh noise is from the operating system and never repeats: an oracle that goes on with a ledger
releases anew, under a new name, and is charged anew. Without a file, charges are kept in memory and end with the
process. Seeded oracles, and those without noise, protect nobody, and have no file.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import os
import secrets
import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NoReturn, cast

import torch
from torch import Tensor, nn

from dpfl_plugin.adapters.records import silo_of
from dpfl_plugin.algorithms.base import RoundPlan
from dpfl_plugin.api.objects import loss_name, plain
from dpfl_plugin.api.privacy import Privacy
from dpfl_plugin.config.incompatible import check_compatible
from dpfl_plugin.config.keys import PrivacyKeys
from dpfl_plugin.config.load import configure
from dpfl_plugin.config.privacy import PrivacyConfig
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.outcomes import Outcome
from dpfl_plugin.core.rounding import digits, places
from dpfl_plugin.data.base import Federation, Holding, Silo, digest, hold
from dpfl_plugin.data.outcome_option import parse
from dpfl_plugin.data.record_order import key_of, ordered
from dpfl_plugin.errors import BudgetError, BusyError, ConfigError, DataError, UnsupportedError, require
from dpfl_plugin.gradients.base import Engine, layers
from dpfl_plugin.gradients.live import LiveModel
from dpfl_plugin.models.build import check_layers, check_model
from dpfl_plugin.oracle import Draw
from dpfl_plugin.oracle import PrivateOracle as RoundOracle
from dpfl_plugin.owners.limits import find_limits
from dpfl_plugin.privacy.account import PrivacyAccount
from dpfl_plugin.privacy.accountants import why_infinite
from dpfl_plugin.privacy.composition import Planned
from dpfl_plugin.privacy.costs import MOST_ROUNDS
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.shared_ledger import Registration, adaptive_total
from dpfl_plugin.privacy.slots import SlotKind
from dpfl_plugin.privacy.statement_pages import privacy_page
from dpfl_plugin.privacy.views import server_composed
from dpfl_plugin.runs.build import Parts, build
from dpfl_plugin.runs.engines import check_engine, choose_engine
from dpfl_plugin.runs.folder import to_json, write_atomic
from dpfl_plugin.runs.ledgers import LedgerEntry, end_run, locked_shared
from dpfl_plugin.runs.models import check_fields, flat_model
from dpfl_plugin.runs.prepare import new_account
from dpfl_plugin.runs.privacy_rules import weak_claims
from dpfl_plugin.runs.record_marks import MarkKey, shared_key_file
from dpfl_plugin.runs.statement import published, statement

WHERE: Final = "PrivateOracle.of"
PLAN: Final = RoundPlan(
    local_steps=1, local_lr=1.0, num_gradients=1, participation="all", participants=(0,), weights=(1.0,)
)
LOOP: Final = (
    "What the training loop itself computes from records, such as a loss or an accuracy, is covered by no epsilon "
    "here; nor is what it reveals if the loop ended because of it.",
)
_opened: weakref.WeakValueDictionary[Path, PrivateOracle] = weakref.WeakValueDictionary()


@dataclass(frozen=True, slots=True)
class _Opened:
    """What an oracle has while it is open; ``path`` is None where charges are kept in memory."""

    config: Config
    parts: Parts
    live: LiveModel
    account: PrivacyAccount
    path: Path | None
    name: str
    stack: contextlib.ExitStack


class PrivateOracle:
    """Private gradients of one silo's records, charged to a ledger before they are handed out; made by `of`.

    It keeps the ledger locked until `close`, or the end of a ``with`` block.

    Attributes:
        net: the model whose gradients are asked for, the caller's own.
        path: the ledger's file; None where charges are kept in memory.
        num_releases: of this oracle so far.
    """

    def __init__(self, net: nn.Module, opened: _Opened) -> None:
        self.net, self.path, self.num_releases = net, opened.path, 0
        self._opened, self._lock = opened, threading.Lock()
        self._closed = False
        parts = opened.parts
        self._layout, self._clip_norms = parts.layout, [parts.rules.clip_norm]
        self._layers = layers(self._layout)
        self._trained = _trained(dict(net.named_parameters()))

    @classmethod
    def of(
        cls,
        net: nn.Module,
        dataset: Any,
        *,
        privacy: Privacy | Mapping[str, Any],
        ledger: str | Path | None,
        steps: int | None = None,
        seed: int | None = None,
        loss: Any = "auto",
        outcome: str | Mapping[str, Any] | None = None,
        l2: float = 0.0,
        engine: str = "auto",
        name: str = "oracle",
    ) -> PrivateOracle:
        """An oracle of the mean gradient of ``net`` over batches of a data set, which it draws itself.

        Args:
            net: is called at every step as it is then, in eval mode, and never written to. Its attributes and layers
                may change between steps; its trainable parameters must remain the same ones in number format and shape,
                and frozen ones and buffers must stay as they are.
            dataset: one silo's records: a data set of pairs (features, label), a ``DataLoader``, of which the records
                count and not the batches, or a pair of arrays or tensors (n, ...), (n,) or (n, k).
            privacy: `Privacy` at record level, or its keys. With noise_multiplier=0 nothing is guaranteed.
            ledger: the file to charge; a new one, or one that earlier oracles or runs on this silo's data began. None
                keeps the charges in memory: they are lost when the process ends, and nothing else counts them.
            steps: releases for which the noise is solved; needed where ``privacy`` gives no noise_multiplier.
            seed: as that of `train`: None: noise is fresh. A number: batches and noise that repeat and protect nobody,
                unless ``privacy.randomness`` is "fresh".
            loss: a name, or a function (outputs, labels) -> one value for each record.
            outcome: what labels are, if not classes: {"kind": "regression", "range": (0, 100)}, ... (docs/outcomes.md).
                For "ordinal" the net gives K - 1 cumulative logits, as `models.score_heads.Thresholds` does.
            l2: lambda of lambda/2 ||y||^2, whose gradient is added after the noise. engine: of per-example gradients.
            name: what the ledger calls it.

        Raises:
            ConfigError, DataError: something that is given is wrong; nothing was released.
            UnsupportedError: for the model, the records or the privacy nothing sound is known here; or the owner of the
            data set limits on this machine.
            BudgetError: earlier releases in the ledger left too little. BusyError: another process, or an oracle of
            this one, has the ledger. LedgerError: it is damaged.
        """
        config, of_loss = _config(net, privacy, steps, seed, loss, l2, engine, name)
        path = _file(ledger)
        if path is not None:
            check_compatible(config, "ledger")
        _refuse_limits()
        if path is not None and (other := _opened.get(path.resolve())) is not None:
            raise BusyError(
                f"ledger={str(ledger)!r}: an oracle of this process uses it, after {other.num_releases} releases. Call "
                "its close(), or use it in a with block."
            )
        module = copy.deepcopy(net)
        check_layers(module, type(net).__name__)
        records = _records(dataset, module, outcome)
        check_fields(module, hold(records))  # in the order of the data set, in which an error numbers them
        with contextlib.ExitStack() as stack:
            held = stack.enter_context(locked_shared(path))
            key = None if path is None else MarkKey.at(shared_key_file(path))
            if config.fresh:  # a seeded oracle repeats with records as they are given
                secret = secrets.token_bytes(32) if key is None else key.value
                records.silos[0], _ = ordered(records.silos[0], key_of(secret, 0))
            parts = _parts(config, module, records, of_loss, key)
            _check_labels(parts, records.silos[0], named=isinstance(loss, str))
            account = _account(config, parts)
            token, entry = secrets.token_hex(8), None
            if held is not None and path is not None:
                slots = _slots(config, steps, account)
                entry = LedgerEntry(path, token, {"name": config.name}, config, parts.holding.survey)
                entry.check_noise(held, parts.rules.release(1.0))
                entry = entry.afforded(held, slots)
            for said in weak_claims(config, parts.rules, parts.num_records):
                warnings.warn(said, stacklevel=2)
            live = _live(config, parts, net)
            if entry is not None and key is not None:
                key.keep()
                account.shared = stack.enter_context(entry.begin())
                account.registration = Registration(account.shared, token)
            found = cls(net, _Opened(config, parts, live, account, path, token, stack.pop_all()))
        if path is not None:
            _opened[path.resolve()] = found
        return found

    @torch.no_grad()
    def gradient(self) -> dict[str, Tensor]:
        """The private mean gradient at the net's parameters, by parameter name, each of that one's shape.

        Every call draws a batch, adds new noise and is charged, in the ledger's file if any, before it returns.

        Raises:
            BudgetError: it would pass the budget; nothing was released.
            ConfigError: the oracle is closed, or trainable parameters of the net were added, removed, frozen or moved.
            UnsupportedError: the net was changed into one that mixes records, or that no engine supports.
            LedgerError: it cannot be charged; nothing was released.
            ChangedError: a buffer, a mode or a frozen parameter of the net changed; nothing was released.
        """
        return self._release()[0]

    def _release(self) -> tuple[dict[str, Tensor], dict[str, nn.Parameter]]:
        """(`gradient`, the net's parameters)."""
        with self._lock:
            named = self._checked()
            opened, step = self._opened, self.num_releases
            parts, account = opened.parts, opened.account
            y = self._layout.flatten(named).to(parts.model)
            # A sum takes less time than looking at each number, and hides none that is not finite.
            if not math.isfinite(float(y.sum())) and not bool(torch.isfinite(y).all()):
                raise ConfigError("a parameter of the net is not finite: training diverged. Nothing was released.")
            if not account.affords(step, PLAN):
                raise BudgetError(
                    f"{self._place}: the budget is used up after {step} releases: {account.why_not()}. Nothing was "
                    "released. End the loop here, or begin an oracle with a larger privacy.epsilon."
                )
            with opened.live.step() as (engine, records):
                oracle = RoundOracle(
                    parts.rules,
                    engine,
                    [records],
                    [0],
                    self._draw(step),
                    max_gradients=1,
                    layers=self._layers,
                    clip_norms=self._clip_norms,
                )
                value = oracle.gradient(y.unsqueeze(0))[0]
            oracle.close()
            account.begin_round(step, PLAN)
            self.num_releases += 1  # whatever comes of it: the next one has another name
            account.append(oracle.charges())
            account.sync()  # on the disk, before anything leaves
            self._clip_norms = list(oracle.clip_norms)
        return {name: part.to(named[name]) for name, part in self._layout.unflatten(value).items()}, named

    @torch.no_grad()
    def backward(self) -> None:
        """`gradient` in place of ``loss.backward()``: sets ``.grad`` of each trainable parameter, for an optimizer.

        What was in ``.grad`` is replaced: raw gradients of records must not be added to private ones.

        Raises:
            as `gradient`.
        """
        gradients, parameters = self._release()
        for name, value in gradients.items():
            parameters[name].grad = value.clone()

    @property
    def epsilon(self) -> float:
        """What this oracle has released comes to, at `delta`."""
        account, config = self._opened.account, self._opened.config
        return server_composed(account.ledger.tally).stated(self._opened.parts.accountant, config.privacy.delta).epsilon

    @property
    def ledger_epsilon(self) -> float:
        """What all that the ledger holds comes to, at the delta of its first run, whatever decided on later ones.

        Each run or oracle counts with all that it registered. Without a ledger, `epsilon`.
        """
        shared = self._opened.account.shared
        if shared is None:
            return self.epsilon
        total = adaptive_total(shared, self.delta)["epsilon"]
        return math.inf if total is None else float(total)

    @property
    def delta(self) -> float:
        return self._opened.config.privacy.delta

    @property
    def noise_multiplier(self) -> float:
        """sigma, noise standard deviation / L2 sensitivity: given, or solved for ``steps``."""
        return self._opened.parts.noise_multiplier

    @property
    def statement(self) -> str:
        """What is guaranteed so far, to whom, and what is not, as Markdown."""
        return privacy_page(self._stated())

    def write_statement(self, folder: str | Path) -> None:
        """Write `privacy.md` and `ledger.json`, which may be published, into a folder; what was there is replaced."""
        said = self._stated()
        place = Path(folder)
        try:
            place.mkdir(parents=True, exist_ok=True)
            write_atomic(place / "ledger.json", to_json(said))
            write_atomic(place / "privacy.md", privacy_page(said))
        except OSError as error:
            raise ConfigError(f"folder={str(folder)!r} cannot be written: {error.strerror}. Name another.") from error

    def close(self) -> None:
        """Let go of the ledger; what was released stays in it. A closed oracle still states its epsilon."""
        with self._lock:
            if not self._closed:
                self._closed = True
                if self.path is not None:
                    _opened.pop(self.path.resolve(), None)
                with self._opened.stack:
                    if (shared := self._opened.account.shared) is not None:  # what it left may serve later ones
                        end_run(shared, self._opened.name)

    def __enter__(self) -> PrivateOracle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ""
        releases = "1 release" if self.num_releases == 1 else f"{self.num_releases} releases"
        unbounded = why_infinite(self.noise_multiplier) if math.isinf(self.epsilon) else ""
        spent = unbounded or f"epsilon {places(self.epsilon, 3)} at delta {self.delta:.15g}"
        return f"PrivateOracle({self._place!r}: {releases}, {spent}{state})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a PrivateOracle cannot be copied or sent to another process: two would charge one ledger.")

    @property
    def _place(self) -> str:
        """Where charges are, in words."""
        return "in memory" if self.path is None else str(self.path)

    def _draw(self, step: int) -> Draw:
        """Names the random bits of a release."""
        config = self._opened.config
        return Draw.fresh(step, self._opened.name) if config.fresh else Draw(config.public_seed, step)

    def _checked(self) -> dict[str, nn.Parameter]:
        """The net's parameters by name, if the oracle may release anything at them."""
        if self._closed:
            raise ConfigError(f"this oracle is closed. Make another one by {WHERE} with the same ledger.")
        _refuse_limits()  # an owner's word counts from the next release on
        named = dict(self.net.named_parameters())
        if _trained(named) != self._trained:
            raise ConfigError(
                "since the oracle was made, parameters of the net were added, removed, frozen or unfrozen, or moved to "
                f"another device or number format. Close it, and make another by {WHERE}."
            )
        return named

    def _stated(self) -> dict[str, Any]:
        opened, account = self._opened, self._opened.account
        run = {
            "name": opened.config.name,
            "id": opened.name,
            "num_silos": 1,
            "rounds": self.num_releases,
            "status": "done" if self._closed else "running",
            "reason": "",
            "oracle": None if opened.path is None else opened.path.name,
        }
        said = statement(
            opened.config,
            account,
            rules=opened.parts.rules,
            accountant=opened.parts.accountant,
            run=run,
            caveats=opened.parts.caveats,
            notes=(),
            measurements=LOOP,
            draws=False,
        )
        return published(said)


def _config(
    net: nn.Module, privacy: Any, steps: int | None, seed: Any, loss: Any, l2: float, engine: str, name: str
) -> tuple[Config, Callable[..., Any] | None]:
    """(what a file would say of such a run, the loss where that is a function)."""
    if not isinstance(net, nn.Module):
        raise ConfigError(f"{WHERE}: net is a {type(net).__name__}: give an nn.Module, an instance with parameters.")
    if not isinstance(privacy, PrivacyConfig | Mapping):
        raise ConfigError(f"{WHERE}: privacy is a {type(privacy).__name__}: give dpfl.Privacy(epsilon=..., delta=...).")
    given = privacy if isinstance(privacy, PrivacyConfig) else Privacy(**cast(PrivacyKeys, dict(privacy)))
    if steps is not None:
        whole = isinstance(steps, int) and not isinstance(steps, bool)
        require(whole and 1 <= steps <= 10**7, "steps", steps, "be a whole number from 1 to 10,000,000: of releases")
    if given.noise_multiplier is None and given.epsilon is not None and steps is None:
        raise ConfigError(
            f"steps is missing: give the number of releases, for which the least noise within privacy.epsilon="
            f"{given.epsilon:g} is found; or give privacy.noise_multiplier."
        )
    said, of_loss = ("auto", loss) if callable(loss) else (loss_name(loss)[0], None)
    like = next(net.parameters(), torch.empty(0))
    kind = "float64" if like.dtype == torch.float64 else "float32"
    values: dict[str, Any] = {
        "name": plain(name),
        "algorithm": {"name": "fedsgd", "form": "single", "local_lr": 1.0},
        "privacy": given.model_dump(exclude_unset=True),
        "seed": plain(seed),
        "loss": said,
        "l2": plain(l2),
        "engine": plain(engine),
        "runtime": {"dtype": kind, "device": str(like.device), "kind": "in_process"},
    }
    if steps is not None or given.epsilon is None:
        values["rounds"] = MOST_ROUNDS if steps is None else steps
    config = configure(values, source=WHERE)
    check_compatible(config, "PrivateOracle", WHERE)
    return config, of_loss


def _file(ledger: Any) -> Path | None:
    if ledger is None:
        return None
    if not isinstance(ledger, str | os.PathLike) or not str(ledger).strip():
        raise ConfigError(
            f"{WHERE}: ledger={ledger!r} must be the path of a file, new or of an earlier oracle; or None, to keep the "
            "charges in memory."
        )
    return Path(ledger)


def _refuse_limits() -> None:
    """An oracle's ledger is the caller's; the owner's, of the data's lifetime, would not know of its releases."""
    if (limits := find_limits()) is not None:
        raise UnsupportedError(
            f"{limits.source}: the owner of the data set limits on this machine, and a training loop of one's own "
            "is not counted in their lifetime ledger. Train with dpfl.train or `dpfl run`, which respect them; the "
            "owner may remove the limits."
        )


def _records(dataset: Any, module: nn.Module, outcome: Any) -> Federation:
    """The records of a data set, whose labels are classes or ``outcome``."""
    known, names = _outcome(outcome)
    silo = silo_of(dataset, module, known, names)
    if hasattr(dataset, "__len__") and digest(silo_of(dataset, module, known, names)) != digest(silo):
        raise DataError(
            "the data set gives other records when it is read again: an oracle's must not change at random "
            "(augmentation). Leave that out; nothing was released."
        )
    num_levels = _num_outputs(module, silo) + 1 if known.kind == "ordinal" else 0
    return Federation([silo], num_levels, silo.train_x.shape[1:], outcome=known)


def _outcome(given: Any) -> tuple[Outcome, tuple[str, ...]]:
    """(what labels are, names of the labels of multi_label)."""
    block = {"kind": given} if isinstance(given, str) else dict(given) if isinstance(given, Mapping) else given
    if block == {"kind": "ordinal"}:  # how many levels there are follows from the net's outputs
        return Outcome("ordinal"), ()
    try:
        return parse(plain(block), None)
    except ConfigError as error:
        raise type(error)(str(error).replace("data.dataset.outcome", "outcome")) from error


def _num_outputs(module: nn.Module, silo: Silo) -> int:
    """Of the module, in eval mode, on a made-up record: its code may keep what it is given."""
    like = next(module.parameters(), torch.empty(0))
    zeros = torch.zeros(1, *silo.train_x.shape[1:], device=like.device)
    with torch.no_grad():
        outputs = module.eval()(zeros.long() if silo.train_x.dtype.kind == "i" else zeros.to(like.dtype))
    return 1 if outputs.dim() == 1 else int(outputs.shape[1])


def _account(config: Config, parts: Parts) -> PrivacyAccount:
    """What counts an oracle's releases.

    Raises:
        ConfigError: the budget does not cover one.
    """
    account = new_account(config, parts, Ledger())
    if not account.affords(0, PLAN):
        raise ConfigError(
            f"privacy.epsilon={config.privacy.epsilon} at delta {digits(config.privacy.delta, 6)} does not cover one "
            "release. Raise it, or noise_multiplier; or lower record_rate."
        )
    if parts.planned is not None and not parts.rules.varies:
        account.look_ahead(parts.planned)
    return account


def _slots(config: Config, steps: int | None, account: PrivacyAccount) -> dict[int, list[Planned]]:
    """What an oracle registers in its ledger: all steps, or as many as the budget has room for.

    Raises:
        ConfigError: nothing says how many there are.
    """
    if steps is None and config.privacy.epsilon is not None:
        steps = account.expected_rounds(PLAN, MOST_ROUNDS)
    if steps is None:
        raise ConfigError(
            "steps is missing: in a ledger that others may add to, an oracle registers how many releases it may make. "
            "Give steps, or privacy.epsilon, or ledger=None."
        )
    counts: Counter[SlotKind] = Counter()
    for step, times in zip(range(steps), itertools.repeat(1)) if account.rules.varies else ((0, steps),):
        for charge in account.charges(step, PLAN):
            counts[charge.release, charge.share] += times * charge.count
    return {0: [Planned(release, count, share) for (release, share), count in counts.items()]}


def _parts(config: Config, module: nn.Module, records: Federation, loss: Any, key: MarkKey | None) -> Parts:
    found = hold(records)
    holding = found if key is None else replace(found, survey=key.marked(found.survey))

    def held(config: Config, base: Path) -> Holding:
        return holding

    parts = build(config, Path(), hold=held, module=module, loss=loss)
    if parts.rules.clipping.measures:
        raise UnsupportedError(
            f"privacy.clip: {parts.rules.clipping.statement}, so that no epsilon holds. Use clip='flat' or 'adaptive'."
        )
    return parts


def _check_labels(parts: Parts, silo: Silo, *, named: bool) -> None:
    """Raise DataError unless the model has an output for each label; of a loss of one's own nothing is known."""
    outcome = parts.outcome
    if not outcome.has_classes or (outcome.kind == "classes" and not named):
        return
    num_outputs = _num_outputs(parts.module, silo)
    num_classes = num_outputs + 1 if outcome.kind == "ordinal" else max(2, num_outputs)
    least, most = int(silo.train_y.min()), int(silo.train_y.max())
    if least < 0 or most >= num_classes:
        raise DataError(
            f"labels are from {least} to {most}, and the model has outputs for the classes 0..{num_classes - 1}: give "
            "it as many outputs as there are classes, and number these from 0."
        )


def _trained(named: Mapping[str, nn.Parameter]) -> list[tuple[str, torch.Size, torch.dtype, torch.device]]:
    """What trainable parameters must stay as they are in."""
    return [(name, one.shape, one.dtype, one.device) for name, one in named.items() if one.requires_grad]


def _live(config: Config, parts: Parts, net: nn.Module) -> LiveModel:
    """The caller's net with its engine, which follows what becomes of it."""
    records, survey = parts.train[0], parts.holding.survey
    trial = torch.zeros_like(records.features[:1]).expand(2, *records.features.shape[1:])

    def choose(module: nn.Module, in_place: bool) -> Engine:
        check_layers(module, type(net).__name__)
        check_model(module.eval(), survey.feature_shape, words=not trial.is_floating_point())
        rules, loss, room = parts.rules, parts.loss, parts.memory
        engine, _ = choose_engine(config, rules, module, loss, survey, trial, room, in_place=in_place)
        check_engine(engine, rules, module, loss, flat_model(module), trial)
        return engine

    return LiveModel(net, parts.loss, records, parts.engine, choose)
