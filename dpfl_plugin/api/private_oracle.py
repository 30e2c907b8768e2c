"""`dpfl.PrivateOracle`: private gradients of one silo's records, for a training loop of one's own.

Nothing here makes noise, clips or composes: `dpfl_plugin.oracle` answers, `PrivacyAccount` decides what the budget
allows, and what is charged is a line of a shared ledger, as if each oracle were a run. So a ledger that is opened again
counts all that earlier oracles and runs released, `dpfl account` adds it up, and `dpfl.train(ledger=...)` may share it.

A release is computed, charged, on the disk, and only then handed out. A process that ends between has charged more than
left, never less. Noise is from the operating system and never repeats: an oracle that goes on with a ledger releases
anew, under a new name, and is charged anew.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import os
import secrets
import threading
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NoReturn

import torch
from torch import Tensor, nn

from dpfl_plugin.adapters.records import silo_of
from dpfl_plugin.algorithms.base import RoundPlan
from dpfl_plugin.api.objects import loss_name, plain
from dpfl_plugin.api.privacy import Privacy
from dpfl_plugin.config.load import configure
from dpfl_plugin.config.privacy import PrivacyConfig
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.rounding import digits, places
from dpfl_plugin.data.base import Federation, Holding, Silo, digest, hold
from dpfl_plugin.errors import BudgetError, BusyError, ConfigError, DataError, UnsupportedError, require
from dpfl_plugin.gradients.base import layers
from dpfl_plugin.models.build import check_layers
from dpfl_plugin.oracle import Draw
from dpfl_plugin.oracle import PrivateOracle as RoundOracle
from dpfl_plugin.owners.limits import find_limits
from dpfl_plugin.privacy.account import PrivacyAccount
from dpfl_plugin.privacy.composition import Planned
from dpfl_plugin.privacy.costs import MOST_ROUNDS
from dpfl_plugin.privacy.filters import Plan
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.prior import Prior, earlier_runs, follows_draws
from dpfl_plugin.privacy.registered import Registration, first_line, limit_of, slots_to_plain
from dpfl_plugin.privacy.slots import Kind
from dpfl_plugin.privacy.statement_page import markdown
from dpfl_plugin.privacy.views import server_composed
from dpfl_plugin.runs.build import Parts, build
from dpfl_plugin.runs.folder import to_json, write_atomic
from dpfl_plugin.runs.job import check_limit, new_account, shared_prior
from dpfl_plugin.runs.ledgers import locked_shared, open_shared
from dpfl_plugin.runs.locations import shared_key
from dpfl_plugin.runs.publishable import published
from dpfl_plugin.runs.record_marks import MarkKey
from dpfl_plugin.runs.rules import weak_claims
from dpfl_plugin.runs.silo_settings import refuse_cycles
from dpfl_plugin.runs.statement import statement

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
    """What an oracle has while it is open."""

    config: Config
    parts: Parts
    account: PrivacyAccount
    path: Path
    name: str
    stack: contextlib.ExitStack


class PrivateOracle:
    """Private gradients of one silo's records, charged to a ledger before they are handed out; made by `of`.

    It keeps the ledger locked until `close`, or the end of a ``with`` block.

    Attributes:
        net: the model whose gradients are asked for, the caller's own.
        path: the ledger's file.
        num_releases: of this oracle so far.
    """

    def __init__(self, net: nn.Module, opened: _Opened) -> None:
        self.net, self.path, self.num_releases = net, opened.path, 0
        self._opened, self._lock = opened, threading.Lock()
        self._closed = False
        parts = opened.parts
        self._layout, self._clip_norms = parts.layout, [parts.rules.clip_norm]
        self._shapes = dict(zip(self._layout.names, self._layout.shapes, strict=True))
        self._fixed = _fixed(net, dict(net.named_parameters()))

    @classmethod
    def of(
        cls,
        net: nn.Module,
        dataset: Any,
        *,
        privacy: Privacy | Mapping[str, Any],
        ledger: str | Path,
        steps: int | None = None,
        loss: Any = "auto",
        l2: float = 0.0,
        engine: str = "auto",
        name: str = "oracle",
    ) -> PrivateOracle:
        """An oracle of the mean gradient of ``net`` over batches of a data set, which it draws itself.

        Args:
            net: is read only; its frozen layers and buffers must stay as they are.
            dataset: one silo's records: a data set of pairs (features, label), a ``DataLoader``, of which the records
                count and not the batches, or a pair of arrays or tensors (n, ...), (n,).
            privacy: `Privacy` at record level, or its keys; noise is always from the operating system.
            ledger: the file to charge; a new one, or one that earlier oracles or runs on this silo's data began.
            steps: releases for which the noise is solved; needed where ``privacy`` gives no noise_multiplier.
            loss: a name, or a function (outputs, labels) -> one value for each record.
            l2: lambda of lambda/2 ||y||^2, whose gradient is added after the noise. engine: of per-example gradients.
            name: what the ledger calls it.

        Raises:
            ConfigError, DataError: something that is given is wrong; nothing was released.
            UnsupportedError: for the model, the records or the privacy nothing sound is known here; or the owner of the
            data set limits on this machine.
            BudgetError: earlier releases in the ledger left too little. BusyError: another process, or an oracle of
            this one, has the ledger. LedgerError: it is damaged.
        """
        config, of_loss = _config(net, privacy, steps, loss, l2, engine, name)
        path = _file(ledger)
        _refuse_limits()
        if (other := _opened.get(path.resolve())) is not None:
            raise BusyError(
                f"ledger={str(ledger)!r}: an oracle of this process uses it, after {other.num_releases} releases. Call "
                "its close(), or use it in a with block."
            )
        module = copy.deepcopy(net)
        check_layers(module, type(net).__name__)
        mine = _records(dataset, module)
        with contextlib.ExitStack() as stack:
            held = stack.enter_context(locked_shared(path))
            assert held is not None
            key = MarkKey.at(shared_key(path))
            parts = _parts(config, module, mine, of_loss, key, path)
            _check_labels(parts, mine, named=isinstance(loss, str))
            account = _account(config, parts, path)
            token, plan = secrets.token_hex(8), Plan(parts.data_sha256, _slots(config, steps, account))
            check_limit(held, path, config, token, plan)
            for said in weak_claims(config, parts.rules, parts.num_records):
                warnings.warn(said, stacklevel=2)
            key.keep()
            totals = functools.partial(first_line, plan, config.privacy.ledger_epsilon, config.privacy.delta)
            account.shared = shared = stack.enter_context(open_shared(path, totals if plan.silos else dict))
            facts = _facts(config, parts, token, account.earlier)
            shared.begin_run(facts | ({"slots": slots_to_plain(plan.silos)} if plan.silos else {}))
            shared.sync()
            if limit_of(shared) is not None:
                account.registration = Registration(shared, token)
            found = cls(net, _Opened(config, parts, account, path, token, stack.pop_all()))
        _opened[path.resolve()] = found
        return found

    @torch.no_grad()
    def gradient(self) -> dict[str, Tensor]:
        """The private mean gradient at the net's parameters, by parameter name, each of that one's shape.

        Every call draws a batch, adds fresh noise and is charged, on the disk, before it returns.

        Raises:
            BudgetError: it would pass the budget; nothing was released.
            ConfigError: the oracle is closed, of another process, or the net was changed otherwise than by training.
            LedgerError: it cannot be charged; nothing was released.
            ChangedError: a buffer, a mode or a frozen parameter of the net changed; nothing was released.
        """
        with self._lock:
            named = self._checked()
            opened, step = self._opened, self.num_releases
            parts, account = opened.parts, opened.account
            y = self._layout.flatten(named).to(parts.model)
            if not bool(torch.isfinite(y).all()):
                raise ConfigError("a parameter of the net is not finite: training diverged. Nothing was released.")
            if not account.affords(step, PLAN):
                raise BudgetError(
                    f"{self.path}: the budget is used up after {step} releases: {account.why_not()}. Nothing was "
                    "released. End the loop here, or begin an oracle with a larger privacy.epsilon."
                )
            oracle = RoundOracle(
                parts.rules,
                parts.host.engine,
                [parts.host.train[0]],
                [0],
                Draw.fresh(step, opened.name),
                max_gradients=1,
                layers=layers(self._layout),
                clip_norms=self._clip_norms,
            )
            value = oracle.gradient(y.unsqueeze(0))[0]
            parts.host.fixed_state.check()
            oracle.close()
            account.begin_round(step, PLAN)
            self.num_releases += 1  # whatever comes of it: the next one has another name
            account.append(oracle.charges())
            account.sync()  # on the disk, before anything leaves
            self._clip_norms = list(oracle.clip_norms)
        return {name: part.to(named[name]) for name, part in self._layout.unflatten(value).items()}

    def backward(self) -> None:
        """`gradient` in place of ``loss.backward()``: sets ``.grad`` of each trainable parameter, for an optimizer.

        What was in ``.grad`` is replaced: raw gradients of records must not be added to private ones.

        Raises:
            as `gradient`.
        """
        parameters = dict(self.net.named_parameters())
        for name, value in self.gradient().items():
            parameters[name].grad = value.clone()

    @property
    def epsilon(self) -> float:
        """What has been released comes to, at `delta`, with all else that the ledger holds."""
        account, config = self._opened.account, self._opened.config
        composed = server_composed(account.ledger.tally, earlier=account.earlier.realised)
        return composed.stated(self._opened.parts.accountant, config.privacy.delta).epsilon

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
        return markdown(self._stated())

    def write_statement(self, folder: str | Path) -> None:
        """Write `privacy.md` and `ledger.json`, which may be published, into a folder; what was there is replaced."""
        said = self._stated()
        place = Path(folder)
        try:
            place.mkdir(parents=True, exist_ok=True)
            write_atomic(place / "ledger.json", to_json(said))
            write_atomic(place / "privacy.md", markdown(said))
        except OSError as error:
            raise ConfigError(f"folder={str(folder)!r} cannot be written: {error.strerror}. Name another.") from error

    def close(self) -> None:
        """Let go of the ledger; what was released stays in it. A closed oracle still states its epsilon."""
        with self._lock:
            if not self._closed:
                self._closed = True
                _opened.pop(self.path.resolve(), None)
                self._opened.stack.close()

    def __enter__(self) -> PrivateOracle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ""
        releases = "1 release" if self.num_releases == 1 else f"{self.num_releases} releases"
        spent = f"epsilon {places(self.epsilon, 3)} at delta {self.delta:.15g}"
        return f"PrivateOracle({str(self.path)!r}: {releases}, {spent}{state})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a PrivateOracle cannot be copied or sent to another process: two would charge one ledger.")

    def _checked(self) -> dict[str, nn.Parameter]:
        """The net's parameters by name, if the oracle may release anything at them."""
        if self._closed:
            raise ConfigError(f"this oracle is closed. Make another one by {WHERE} with the same ledger.")
        _refuse_limits()  # an owner's word counts from the next release on
        named = dict(self.net.named_parameters())
        trained = {name: value.shape for name, value in named.items() if value.requires_grad}
        if trained != self._shapes or _fixed(self.net, named) != self._fixed:
            raise ConfigError(
                "since the oracle was made, parameters of the net were frozen, unfrozen or replaced, or its frozen "
                "layers or buffers changed: the oracle has those that it was given. Close it, and make another by "
                f"{WHERE}."
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
            "oracle": opened.path.name,
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
    net: nn.Module, privacy: Any, steps: int | None, loss: Any, l2: float, engine: str, name: str
) -> tuple[Config, Callable[..., Any] | None]:
    """(what a file would say of such a run, the loss where that is a function)."""
    if not isinstance(net, nn.Module):
        raise ConfigError(f"{WHERE}: net is a {type(net).__name__}: give an nn.Module, an instance with parameters.")
    if not isinstance(privacy, PrivacyConfig | Mapping):
        raise ConfigError(f"{WHERE}: privacy is a {type(privacy).__name__}: give dpfl.Privacy(epsilon=..., delta=...).")
    given = privacy if isinstance(privacy, PrivacyConfig) else Privacy(**{str(k): v for k, v in privacy.items()})
    if given.randomness == "seeded":
        raise ConfigError(
            "privacy.randomness='seeded': an oracle's batches and noise are from the operating system, never from a "
            "seed. Leave it out."
        )
    if given.unit != "record":
        raise UnsupportedError(f"privacy.unit={given.unit!r}: an oracle protects records. Use unit='record'.")
    if given.budget_view != "server":
        raise UnsupportedError(
            f"privacy.budget_view={given.budget_view!r}: whoever is given an oracle's releases sees all of them, as a "
            "server does. Leave it out."
        )
    if steps is not None:
        whole = isinstance(steps, int) and not isinstance(steps, bool)
        require(whole and 1 <= steps <= 10**7, "steps", steps, "be a whole number from 1 to 10,000,000: of releases")
    if given.noise_multiplier == 0:
        raise ConfigError("privacy.noise_multiplier=0: nothing would be private. Use torch's own gradients for that.")
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
        "privacy": {**given.model_dump(exclude_unset=True), "randomness": "fresh"},
        "loss": said,
        "l2": plain(l2),
        "engine": plain(engine),
        "runtime": {"dtype": kind, "device": str(like.device), "kind": "in_process"},
    }
    if steps is not None or given.epsilon is None:
        values["rounds"] = MOST_ROUNDS if steps is None else steps
    return configure(values, source=WHERE), of_loss


def _file(ledger: Any) -> Path:
    if not isinstance(ledger, str | os.PathLike) or not str(ledger).strip():
        raise ConfigError(f"{WHERE}: ledger={ledger!r} must be the path of a file, new or of an earlier oracle.")
    return Path(ledger)


def _refuse_limits() -> None:
    """An oracle's ledger is the caller's; the owner's, of the data's lifetime, would not know of its releases."""
    if (limits := find_limits()) is not None:
        raise UnsupportedError(
            f"{limits.source}: the owner of the data set limits on this machine, and a training loop of one's own "
            "is not counted in their lifetime ledger. Train with dpfl.train or `dpfl run`, which respect them; the "
            "owner may remove the limits."
        )


def _records(dataset: Any, module: nn.Module) -> Silo:
    mine = silo_of(dataset, module)
    if hasattr(dataset, "__len__") and digest(silo_of(dataset, module)) != digest(mine):
        raise DataError(
            "the data set gives other records when it is read again: an oracle's must not change at random "
            "(augmentation). Leave that out; nothing was released."
        )
    return mine


def _account(config: Config, parts: Parts, path: Path) -> PrivacyAccount:
    """What counts an oracle's releases together with those that the ledger holds.

    Raises:
        BudgetError, ConfigError: not one release is left.
    """
    prior = shared_prior(path)(parts.data_sha256, 1, parts.rules)
    account = new_account(config, parts, prior, Ledger())
    if not account.affords(0, PLAN):
        held = f"{path} holds {earlier_runs(prior)}, at epsilon {digits(account.held(), 4)}: " if prior.runs else ""
        raise (BudgetError if prior.runs else ConfigError)(
            f"{held}privacy.epsilon={config.privacy.epsilon} at delta {digits(config.privacy.delta, 6)} does not cover "
            "one release. Raise it, or noise_multiplier; or lower record_rate."
        )
    if parts.planned is not None and not parts.rules.varies:
        account.look_ahead(parts.planned)
    return account


def _slots(config: Config, steps: int | None, account: PrivacyAccount) -> dict[int, list[Planned]]:
    """What an oracle registers in its ledger: all steps, or as many as the budget has room for.

    Raises:
        ConfigError: the ledger is to have a limit, and nothing says how many there are.
    """
    if steps is None and config.privacy.epsilon is not None:
        steps = account.expected_rounds(PLAN, MOST_ROUNDS)
    if steps is None:
        if config.privacy.ledger_epsilon is not None:
            raise ConfigError("privacy.ledger_epsilon needs steps, or privacy.epsilon: how many releases there are.")
        return {}
    counts: Counter[Kind] = Counter()
    for step, times in zip(range(steps), itertools.repeat(1)) if account.rules.varies else ((0, steps),):
        for charge in account.charges(step, PLAN):
            counts[charge.release, charge.share] += times * charge.count
    return {0: [Planned(release, count, share) for (release, share), count in counts.items()]}


def _parts(config: Config, module: nn.Module, mine: Silo, loss: Any, key: MarkKey, path: Path) -> Parts:
    refuse_cycles(config, "releases of an oracle are composed with those of earlier ones in the ledger")
    found = hold(Federation([mine], 0, mine.train_x.shape[1:]))
    holding = replace(found, survey=key.marked(found.survey))

    def held(config: Config, base: Path) -> Holding:
        return holding

    parts = build(config, Path(), None, shared_prior(path), held, module=module, loss=loss)
    if parts.rules.clipping.measures:
        raise UnsupportedError(
            f"privacy.clip: {parts.rules.clipping.statement}, so that no epsilon holds. Use clip='flat' or 'adaptive'."
        )
    return parts


def _check_labels(parts: Parts, mine: Silo, *, named: bool) -> None:
    """Raise DataError unless the model has an output for each label; of a loss of one's own nothing is known."""
    if not named:
        return
    with torch.no_grad():
        outputs = parts.module(torch.zeros_like(parts.host.train[0].features[:1]))  # no record: its code may keep it
    num_classes = max(2, 1 if outputs.dim() == 1 else int(outputs.shape[1]))
    least, most = int(mine.train_y.min()), int(mine.train_y.max())
    if least < 0 or most >= num_classes:
        raise DataError(
            f"labels are from {least} to {most}, and the model has outputs for the classes 0..{num_classes - 1}: give "
            "it as many outputs as there are classes, and number these from 0."
        )


def _fixed(net: nn.Module, named: Mapping[str, nn.Parameter]) -> list[tuple[str, int, int]]:
    """What shows that frozen parameters and buffers stay as they were, without reading them."""
    frozen = [(name, one) for name, one in named.items() if not one.requires_grad]
    return [(name, id(one), one._version) for name, one in (*frozen, *net.named_buffers())]


def _facts(config: Config, parts: Parts, token: str, prior: Prior) -> dict[str, Any]:
    """What the ledger says of an oracle, as of a run."""
    rules, privacy = parts.rules, config.privacy
    follows = privacy.epsilon is not None and follows_draws(prior, privacy.budget_view, capped=False)
    return {
        "noise": token,
        "name": config.name,
        "data_sha256": parts.data_sha256,
        "num_silos": 1,
        "delta": privacy.delta,
        "drawn": False,
        "draws_decided": follows,
        "follows_draws": follows,
        "largest_rate": rules.release(rules.sampler.rate(parts.num_records[0])).rate,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
