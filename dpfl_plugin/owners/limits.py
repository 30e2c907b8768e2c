"""What the owner of a silo's data lets be released, set on the owner's machine: the limits file.

    folder: /srv/dpfl        # state of the silo and its lifetime ledger; absolute, or from ~
    epsilon: 8               # the most that all releases of these data may come to, over their lifetime
    delta: 1e-4
    unit: record             # what is protected: each record, or the silo's data as a whole: silo
    data: patients           # a name for the data; all agreements on data of this name add up
    send: []                 # what may be sent besides private releases
    code: []                 # callables that settings may name (module:), as package.module:callable
    min_records: 200         # public facts of the records: that there are so many at least,
    num_classes: 2           # that labels are 0 and 1,
    ranges: [0, 120]         # and that each feature is in [0, 120]; or a pair for each feature

Whatever a server proposes is checked against it. It is read from a place that no server can name: an argument of this
machine's own code or settings, the environment variable DPFL_LIMITS, or a default place.
"""

from __future__ import annotations

import math
import os
import re
import stat
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, Literal, NoReturn

from dpfl_plugin.config.load import mapping_in
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.exact import floor_share
from dpfl_plugin.data.preprocess import fitted_on_files, fitted_on_records
from dpfl_plugin.errors import ConfigError, EarlierNameWarning, LimitError, is_real, nearest
from dpfl_plugin.given import is_given
from dpfl_plugin.owners.named_code import KEY as CODE
from dpfl_plugin.owners.named_code import NOT_WITHIN, check_code, listed_code
from dpfl_plugin.privacy.events import Unit
from dpfl_plugin.runs.public_facts import FILES, is_named, is_of_package

VARIABLE: Final = "DPFL_LIMITS"
PLACES: Final = ("~/.config/dpfl/limits.yaml", "/etc/dpfl/limits.yaml")
Surroundings = Literal["deployment", "simulation"]
Range = tuple[float, float]
Extra = Literal["metrics", "record_counts", "fitted"]
SEND: Final[dict[str, str]] = {
    "metrics": "losses, accuracies and whatever else evaluations and queries of a project send",
    "record_counts": "numbers of training and test records",
    "fitted": "what preprocessing takes from records without noise, and classes that are read from them",
}
ACCOUNTANTS: Final = ("pld", "rdp", "gaussian", "prv", "paper")  # of this package
NONE_SET: Final = (
    "no limits are set for these data on this machine. The owner of the data writes a file of a few lines "
    f"(docs/limits.md) to {PLACES[0]}, or names it by {VARIABLE}"
)
SIMULATED: Final = (
    "no limits are set on this machine (docs/limits.md): whoever configures this simulation decides what is released."
)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What may be released of an owner's data.

    Attributes:
        folder: where the silo's state and its lifetime ledgers are; nobody else sets it.
        epsilon, delta: what all agreements together may come to, over the lifetime of the data.
        unit: what has to be protected.
        data: the name of the data. All that is released of data of this name adds up, whatever the records are: they
            may grow, be sorted anew or be encoded in another way.
        send: what may be sent besides private releases, of `SEND`.
        code: what settings may name by ``module:``; see `check_code`.
        min_records, num_classes, ranges: public facts of the records, by which settings are checked before any record
            is read; see `usable`. ranges: one for all features, or one for each. None where the file does not say.
        source: the file, for messages.
    """

    folder: Path
    epsilon: float
    delta: float
    unit: Unit = "record"
    data: str = "data"
    send: frozenset[str] = frozenset()
    code: frozenset[str] = frozenset()
    min_records: int | None = None
    num_classes: int | None = None
    ranges: tuple[Range, ...] | None = None
    source: str = "limits"

    def __post_init__(self) -> None:
        if not self.folder.is_absolute():
            raise ConfigError(f"{self.source}: folder={str(self.folder)!r} must be an absolute path, or begin with ~.")
        for key, ok, must in (
            ("epsilon", is_real(self.epsilon) and 0 < self.epsilon < math.inf, "be a number above 0"),
            ("delta", is_real(self.delta) and 0 < self.delta < 1, "be a number in (0, 1)"),
            ("unit", self.unit in ("record", "silo"), "be record or silo"),
            (
                "min_records",
                self.min_records is None or _count(self.min_records, 1),
                "be a number of records, 1 or more",
            ),
            (
                "num_classes",
                self.num_classes is None or _count(self.num_classes, 2),
                "be a number of classes, 2 or more",
            ),
            ("data", bool(_NAME.fullmatch(str(self.data))), "be a name of letters, digits, '_', '-' and '.'"),
        ):
            if not ok:
                raise ConfigError(f"{self.source}: {key}={getattr(self, key)!r} must {must}.")
        for item in sorted(self.send):
            if item not in SEND:
                raise ConfigError(f"{self.source}: send: {item!r} is not known{nearest(item, SEND)}. {_sendable()}")

    def of_silo(self, silo: int) -> Limits:
        """Those of one of several silos in a simulation, each of which stands for an owner of its own."""
        return replace(self, folder=self.folder / f"silo-{silo}")

    def check_settings(self, config: Config, num_records: int | None = None) -> None:
        """`check` what comes to a silo of a platform, before anything that it names is imported.

        Nothing of it depends on records: who asks by many settings learns what the owner's file says.

        Args:
            num_records: what the settings say that every silo has at least; None where they do not.

        Raises:
            LimitError: see `check`; or they ask for more records than the file says that there are, or it does not say.
        """
        self.check(config)
        privacy, least = config.privacy, self.min_records
        in_batch = privacy.sampler in ("fixed", "with_replacement")
        for key, value in (
            ("num_records", num_records),
            ("privacy.batch_size", privacy.batch_size if in_batch else None),
            ("privacy.record_rate", privacy.record_rate if in_batch else None),
        ):
            if value is None:
                continue
            if least is None:
                self.refuse(
                    f"min_records is missing: whether {key}={value} can be had depends on how many records there are",
                    "state a number that they are never below, and that anybody may know (min_records: 200, say)",
                )
            if (floor_share(value, least) < 1) if key == "privacy.record_rate" else value > least:
                self.refuse(f"{key}={value} needs more records than min_records: {least}")

    def check_outputs(self, num_outputs: int) -> None:
        """Check that a model that tells classes apart has an output for each that a record may be of.

        Raises:
            LimitError: it has not, or the file does not say how many classes there are.
        """
        classes = max(2, num_outputs)  # of one output: two
        if self.num_classes is None:
            self.refuse(
                f"num_classes is missing: whether a model that tells {classes} classes apart fits the records depends "
                "on their labels",
                "state the number of classes, numbered from 0, that anybody may know (num_classes: 2, say)",
            )
        if self.num_classes > classes:
            self.refuse(f"the model tells {classes} classes apart, and there are num_classes: {self.num_classes}")

    def check(self, config: Config) -> None:
        """Check what a server proposes, as far as its settings tell; before anything is computed from records.

        Raises:
            LimitError: it protects something else, promises nothing, or more than the lifetime's epsilon or delta.
        """
        privacy = config.privacy
        self._check_code(config)
        self._check_data(config)
        if privacy.unit != self.unit:
            self.refuse(
                f"the agreement protects each {privacy.unit} (privacy.unit), and the owner's limit is unit: {self.unit}"
            )
        if privacy.noise_multiplier == 0:
            self.refuse("the agreement adds no noise (privacy.noise_multiplier: 0): nothing would be protected")
        if privacy.epsilon is not None and privacy.epsilon > self.epsilon:
            self.refuse(
                f"the agreement's epsilon {privacy.epsilon:g} is above the owner's limit of {self.epsilon:g} for the "
                "data's lifetime"
            )
        if privacy.delta > self.delta:
            self.refuse(
                f"the agreement's delta {privacy.delta:g} is above the owner's limit of {self.delta:g} for the data's "
                "lifetime"
            )

    def _check_code(self, config: Config) -> None:
        """Code that runs is the owner's choice, and what says what releases cost is of this package."""
        check_code(config, self.code, self.source)
        accountant = config.privacy.accountant
        if accountant.name not in ACCOUNTANTS:
            self.refuse(
                f"privacy.accountant {accountant.name or accountant.module!r} is not one of {', '.join(ACCOUNTANTS)}, "
                "by which the owner of the data counts",
                "use one of them",
            )

    def _check_data(self, config: Config) -> None:
        """What is fitted to private records moves with each of them: all others' gradients change with it."""
        data = config.data
        for name in fitted_on_records({"name": step.name, **step.options} for step in data.preprocess):
            self.allow("fitted", f"what data.preprocess: {name} takes from the records, without noise,")
        for name, file in fitted_on_files({"name": step.name, **step.options} for step in data.preprocess):
            self.allow("fitted", f"what data.preprocess: {name} takes from {file!r}, which a server calls public,")
        if any(step.name == "backbone" for step in data.preprocess):
            self.allow("fitted", "what code that is named by data.preprocess: backbone makes of all records at once")
        by_object = is_given(data.dataset.module, "data")
        if (data.dataset.name in FILES or by_object) and not is_named(config):
            self.allow("fitted", "the classes that are read from the records (data.dataset.classes names none)")
        if not (is_of_package(config) or by_object):
            examples = "names of columns and classes, caveats, the range of an outcome"
            self.allow("fitted", f"what code of somebody's own says of the records ({examples})")

    def check_noise(self, seeded: bool) -> None:
        """Check where noise comes from.

        Raises:
            LimitError: it comes from a seed.
        """
        if seeded:
            why = "privacy.randomness: seeded: the noise would come from a seed, and whoever knows that can compute it"
            raise LimitError(f"{self.source}: {why}. Nothing was released. Use privacy.randomness: fresh.", NOT_WITHIN)

    def allow(self, extra: Extra, what: str) -> None:
        """Check that something besides private releases may be sent.

        Raises:
            LimitError: the owner does not say so.
        """
        if extra not in self.send:
            self.refuse(f"the owner of the data does not let {what} be sent ({extra})", f"add {extra} to send:")

    def refuse(self, why: str, fix: str = "change the limit there, if you are the owner of the data") -> NoReturn:
        """Raise LimitError: why is for the owner's log."""
        raise LimitError(f"{self.source}: {why}. Nothing was released. To allow it, {fix}.", NOT_WITHIN)


def find_limits(named: object = None, by: str = "", environment: Mapping[str, str] = os.environ) -> Limits | None:
    """The limits of this machine; None if none are set.

    Args:
        named: a file that this machine's own settings name; ``by``: by which of them. None for none.
        environment: of this process.

    Raises:
        ConfigError: the file is not to be trusted or not understood, or there are two of them.
    """
    sources = {by: str(named)} if named is not None else {}
    if environment.get(VARIABLE):
        sources[VARIABLE] = environment[VARIABLE]
    if not sources:
        sources = {place: place for place in PLACES if os.path.exists(os.path.expanduser(place))}
    paths = {where: Path(path).expanduser() for where, path in sources.items()}
    if len({os.path.realpath(path) for path in paths.values()}) > 1:
        both = " and ".join(f"{path} (by {where})" for where, path in paths.items())
        raise ConfigError(f"there are two limits files, {both}: which of them counts is not clear. Keep one.")
    return next((read_limits(path) for path in paths.values()), None)


def read_limits(path: Path) -> Limits:
    """The limits in a file that nobody but its owner, who is this user or root, can have written.

    Raises:
        ConfigError: it is missing, not readable, of another owner, writable by others, or not understood.
    """
    if not path.is_absolute():
        raise ConfigError(f"the limits file {path} must be named by an absolute path, or from ~.")
    values = mapping_in(_trusted_text(path), path)
    if "repeatable" in values:  # of earlier versions
        if values.pop("repeatable") is not False:
            raise ConfigError(f"{path}: repeatable: noise of owners' data is always fresh. Remove the line.")
        warnings.warn(f"{path}: repeatable: false is no longer needed. Remove it.", EarlierNameWarning, stacklevel=2)
    known = [field.name for field in fields(Limits) if field.name != "source"]
    for key in values:
        if key not in known:
            raise ConfigError(f"{path}: {key} is not a known key{nearest(str(key), known)}. Known: {', '.join(known)}.")
    for key in ("folder", "epsilon", "delta"):
        if values.get(key) is None:
            raise ConfigError(f"{path}: {key} is missing. Needed: folder, epsilon, delta. See docs/limits.md.")
    send = values.get("send") or []
    if not isinstance(send, list) or not all(isinstance(item, str) for item in send) or len(set(send)) != len(send):
        raise ConfigError(f"{path}: send={send!r} must be a list, each once. {_sendable()}")
    if values.get("ranges") is not None:
        values["ranges"] = _ranges(values["ranges"], path)
    code = listed_code(values.get(CODE) or [], str(path))
    settings = {**values, "send": frozenset(send), CODE: code, "folder": Path(str(values["folder"])).expanduser()}
    return Limits(**settings, source=str(path))


def _ranges(value: Any, path: Path) -> tuple[Range, ...]:
    """A pair, or a list of pairs."""
    pairs = value if isinstance(value, list) and value and isinstance(value[0], list) else [value]
    for pair in pairs:
        good = isinstance(pair, list) and len(pair) == 2 and all(map(is_real, pair)) and all(map(math.isfinite, pair))
        if not good or not pair[0] <= pair[1]:
            raise ConfigError(f"{path}: ranges={value!r} must be [least, greatest], or a list of such pairs.")
    return tuple((float(least), float(most)) for least, most in pairs)


def _trusted_text(path: Path) -> str:
    """What is in the file, of which this very handle is checked.

    Raises:
        ConfigError: see `read_limits`.
    """
    try:
        with path.open("rb") as file:
            status, data = os.fstat(file.fileno()), file.read()
        folder = path.parent.stat()
    except OSError as error:
        raise ConfigError(
            f"the limits file {path} cannot be read ({error.strerror}). Write it, or make it readable: chmod u+r "
            f"{path}."
        ) from error
    for what, owned, sticky in ((path, status, False), (path.parent, folder, True)):
        if owned.st_uid not in (0, os.getuid()):
            raise ConfigError(
                f"{what} belongs to user {owned.st_uid}: limits count only if they are this user's own, or root's. "
                f"Make it yours: sudo chown $(id -u) {what}."
            )
        others = stat.S_IWGRP | stat.S_IWOTH
        if owned.st_mode & others and not (sticky and owned.st_mode & stat.S_ISVTX):
            raise ConfigError(f"{what} can be written by others: anybody might raise the limits. chmod go-w {what}.")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text (byte {error.start}).") from error


def own_folder(folder: Path, source: str) -> None:
    """Make the owner's folder if it is missing, and check that nobody else can write to it.

    Raises:
        ConfigError: it is no folder, cannot be made, or is another's.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        raise ConfigError(
            f"{source}: folder: {folder} cannot be made ({error.strerror}). Make it, and own it: mkdir -p {folder}; "
            f"chmod 700 {folder}."
        ) from error
    if status.st_uid not in (0, os.getuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(
            f"{source}: folder: {folder} can be written by others, who might set the lifetime ledger back. Own it, and "
            f"chmod go-w {folder}."
        )


def _sendable() -> str:
    return "What may be sent: " + "; ".join(f"{name}: {what}" for name, what in SEND.items()) + "."


def _count(value: object, least: int) -> bool:
    return type(value) is int and value >= least
