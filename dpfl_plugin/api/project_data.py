"""What a new project's configuration says of its data: made-up records, or files that are there."""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from dpfl_plugin.api import tables
from dpfl_plugin.api.training_defaults import TrainingDefaults, squared_norm_of, training_defaults
from dpfl_plugin.core.outcomes import OutcomeKind
from dpfl_plugin.data import files as data_files
from dpfl_plugin.data.base import Features
from dpfl_plugin.data.error_collector import AS_IT_IS, SAVE_AS_UTF_8, ErrorCollector, NotUtf8Error
from dpfl_plugin.data.federation import alone
from dpfl_plugin.data.fetch import DataSource
from dpfl_plugin.data.identifiers import KEEPS, identifier_columns, person_columns, record_columns, whose
from dpfl_plugin.data.names import column_list
from dpfl_plugin.data.table import READS_ALL, is_number
from dpfl_plugin.errors import ConfigError, DataError, nearest

if TYPE_CHECKING:
    from dpfl_plugin.data.table_reader import TableReader

LABELS: Final = ("label", "target", "class", "outcome", "diagnosis", "y")
SUFFIXES: Final = (".csv", ".csv.gz")
TABLES: Final = (*SUFFIXES, ".tsv", ".txt", ".parquet", ".xlsx")
FAR_APART: Final = 10.0  # scales of columns
DEALT: Final = 5  # silos that the records of one file are dealt to
ONE_FILE: Final = f"One file and no silo column: its records are dealt to {DEALT} silos at random, as a simulation."
RARE_CLASS: Final = (
    "One class is rare, so accuracy says little: tune and stop early by measure: log_loss. private_statistics and "
    "privacy.clip_norm are chosen for it (docs/outcomes.md#rare-classes)."
)
EPSILON: Final = 4.0  # of a drafted run
TRAINING: Final = 0.8  # of a silo's records, the others being for tests
OTHERS: Final[tuple[OutcomeKind, ...]] = ("ordinal", "counts")  # that whole numbers may be, as draft.notes say
UNIT_NORM: Final = 1.0  # the squared norm of a record that `unit_norm` scaled


@dataclass(frozen=True, slots=True)
class OwnData:
    """Tables that are there: a file, a folder with one for each silo, or a pattern; and which columns are what.

    Attributes:
        encoding, sheet: see `TextFormat`.
    """

    path: Path
    label: str | None = None
    guess_label: bool = False
    silo: str | None = None
    person: str | None = None
    time: str | None = None
    event: str | None = None
    encoding: str | None = None
    sheet: str | None = None

    @property
    def roles(self) -> dict[str, str | None]:
        """Of a schema: {role: column}."""
        return {key: getattr(self, key) for key in ("label", "silo", "person", "time", "event")}


@dataclass(frozen=True, slots=True)
class DataBlock:
    """What the configuration says of the data, and what the user is told of it; by default of made-up records.

    Attributes:
        dataset: the block of that name. schema: drafted. classes: that were read from the records.
        dealt: how many silos the records of one file are dealt to; None: the silos that the data have.
        unequal: whether silos differ in their numbers of records. training: how to train; None: for made-up records.
        model: the linear model of the outcome.
    """

    dataset: Mapping[str, Any] | None = None
    told: tuple[str, ...] = ()
    schema: Mapping[str, Any] | None = None
    classes: tuple[str, ...] = ()
    dealt: int | None = None
    unequal: bool = False
    training: TrainingDefaults | None = None
    model: str = "softmax"

    @property
    def made_up(self) -> bool:
        return self.dataset is None


def csv_block(own: OwnData, folder: Path) -> DataBlock:
    """What the user's files hold.

    Raises:
        ConfigError: it was not said which column is the label, or a column is not there.
        DataError: as `data_files.csv`; or no column is left to learn from.
    """
    from dpfl_plugin.data.table_reader import TextFormat, open_table

    paths, patterns = _paths(own.path, folder)
    try:
        with closing(open_table(paths[0], TextFormat(), [*filter(None, (own.label, own.silo))])) as table:
            delimiter, header = table.delimiter, table.header
            label, guessed = _label(own, paths[0], header)
            if own.silo is not None and own.silo not in header:
                raise _no_column("silo", own.silo, paths[0], header)
            words = _words(table, {label, own.silo})
    except NotUtf8Error as error:
        raise DataError(str(error).replace(AS_IT_IS, f"{SAVE_AS_UTF_8} Or `dpfl init --from`.")) from error
    options: dict[str, Any] = {"label_column": label, "silo_column": own.silo, "delimiter": delimiter}
    listed = [glob.escape(str(path)) for path in paths]
    try:
        read = data_files.csv(DataSource(base=Path()), files=listed, ignore_columns=words, **options)
    except DataError as error:
        if READS_ALL in str(error):
            raise
        raise DataError(f"{error}\n{READS_ALL}") from error
    sites = np.zeros(len(read.features), np.int64) if read.groups is None else read.groups
    numbers = record_columns(read.columns, read.features, sites)
    if len(numbers) == len(read.columns):
        raise DataError(
            f"{paths[0]}: no column is left to learn from: {column_list(words + numbers)} hold words, or numbers that "
            "name the record. Encode words as numbers."
        )
    features = [column for column in read.columns if column not in numbers]
    dataset: dict[str, Any] = {"name": "csv", "files": _one(patterns), "label_column": label}
    dataset |= {"silo_column": own.silo} if own.silo is not None else {}
    dataset |= {"delimiter": delimiter} if delimiter != "," else {}
    dataset |= {"ignore_columns": [*words, *numbers]} if words or numbers else {}
    dealt = DEALT if own.silo is None and len(paths) == 1 else None
    told = [f"label: {label}{' (guessed: check it)' if guessed else ''}; {len(read.class_names)} classes."]
    told.append(f"features: {column_list(features)}.")
    if words:
        told.append(f"not used, as they hold words: {column_list(words)}. Encode them as numbers to use them.")
        told.append("A schema reads words, dates, gaps and marks of thousands: `dpfl init --from` drafts one.")
    told += _scales(features, read.features[:, [read.columns.index(name) for name in features]])
    told += _told_of_numbers(numbers, identifier_columns(read.columns, read.features, sites))
    mend = f"If so, name it as person_column, {KEEPS}; or leave it out: ignore_columns."
    told += [whose(name, mend) for name in person_columns(read.columns, read.features, sites)]
    silos = [] if read.groups is None else [read.silo_names[silo] for silo in read.groups.tolist()]
    told += alone(silos)
    told += [ONE_FILE] * (dealt is not None)
    sizes = tuple(Counter(silos).values()) or (len(read.labels),)
    training = training_of("classes", UNIT_NORM, sizes, dealt)
    return DataBlock(
        dataset, tuple(told), classes=tuple(read.class_names), dealt=dealt, unequal=len({*sizes}) > 1, training=training
    )


def schema_block(own: OwnData, folder: Path) -> DataBlock:
    """What the user's files seem to hold, as a schema to be corrected.

    Raises:
        ConfigError: it was not said which column is the label, or a column is not there.
        DataError: a file cannot be read, or they have different columns.
    """
    paths, patterns = _paths(own.path, folder, TABLES)
    form = {"encoding": own.encoding, "sheet": own.sheet}
    draft = tables.drafted(paths, own.roles, form)
    dataset: dict[str, Any] = {"name": "table", "files": _one(patterns)}
    dataset |= {"decimal": draft.form.decimal} if draft.form.decimal != "." else {}
    dataset |= {key: value for key, value in form.items() if value is not None}
    told = [*draft.notes, f"The schema was {tables.NOT_PRIVATE}. Then remove drafted: true."]
    if own.person is not None:
        told += [
            f"person: {own.person}. A person's records stay together; to protect them all at once, set "
            "privacy.unit: person and privacy.max_records_per_person."
        ]
    dealt = DEALT if own.silo is None and len(paths) == 1 else None
    told += [ONE_FILE] * (dealt is not None)
    outcome = draft.schema["label"]["outcome"]
    squared = squared_norm_of(draft.schema["columns"])
    for other in OTHERS:
        if any(f"outcome: {other}" in note for note in draft.notes):
            how = training_of(other, squared, draft.sizes, dealt)
            first = "private_statistics: {outcome: true}, " if how.count_labels else ""
            told.append(
                f"With outcome: {other} train with model: linear, {first}algorithm.local_lr: {how.local_lr:g} and "
                f"privacy.clip_norm: {how.clip_norm:g}."
            )
    training = training_of(outcome, squared, draft.sizes, dealt, draft.rarest)
    told += [RARE_CLASS] * training.is_rare
    return DataBlock(
        dataset,
        tuple(told),
        draft.schema,
        dealt=dealt,
        unequal=len({*draft.sizes}) > 1,
        training=training,
        model={"classes": "softmax", "survival": "grouped_cox"}.get(outcome, "linear"),
    )


def _one(patterns: list[str]) -> str | list[str]:
    return patterns[0] if len(patterns) == 1 else patterns


def training_of(
    outcome: OutcomeKind, squared_norm: float, sizes: Sequence[int], dealt: int | None, rarest: float | None = None
) -> TrainingDefaults:
    """How to train on silos of these ``sizes``."""
    return training_defaults(
        outcome,
        squared_norm,
        num_records=TRAINING * sum(sizes),
        num_silos=dealt or len(sizes),
        epsilon=EPSILON,
        rarest=rarest,
    )


def _told_of_numbers(unused: Sequence[str], different: Sequence[str]) -> list[str]:
    """What to say of columns of whole numbers that differ in every record, some of which are not used."""
    told = []
    if unused:
        told.append(f"not used, as their numbers differ in every record, as identifiers do: {column_list(unused)}.")
    if used := [name for name in different if name not in unused]:
        told.append(
            f"another whole number in every record: {column_list(used)}. A column that says which record it is, and "
            "measures nothing, belongs in ignore_columns."
        )
    return told


def _scales(names: Sequence[str], x: Features) -> list[str]:
    """What to say of columns whose scales differ so much that `unit_norm` leaves little of some of them."""
    sizes = np.sqrt(np.mean(np.square(x, dtype=np.float64), axis=0))
    large, small = int(sizes.argmax()), int(sizes.argmin())
    if sizes[large] <= FAR_APART * sizes[small]:
        return []
    return [
        f"The columns differ in scale: {names[large]} is about {sizes[large]:.3g}, {names[small]} {sizes[small]:.3g}. "
        "unit_norm, which run.yaml has, would leave next to nothing of the small ones: bring columns to one scale in "
        "the files, by ranges that are public."
    ]


def _inside(path: Path, folder: Path) -> Path | None:
    """``path`` from the project's folder, if it lies in it."""
    real, root = path.resolve(), folder.resolve()
    return real.relative_to(root) if real.is_relative_to(root) else None


def _paths(path: Path, folder: Path, suffixes: Sequence[str] = SUFFIXES) -> tuple[list[Path], list[str]]:
    """The files, and how the configuration names them."""
    if not path.exists():
        if glob.has_magic(str(path)) and (several := [Path(one) for one in sorted(glob.glob(str(path)))]):
            return several, [_pattern(path, folder)]
        raise DataError(f"{str(path)!r}: there is no such file or folder; looked for {path.absolute()}.")
    inside = _inside(path, folder)
    named = path.resolve() if inside is None else inside
    if path.is_file():
        return [path], [glob.escape(str(named))]
    paths, patterns = [], []
    for suffix in suffixes:
        found = sorted(one for one in path.iterdir() if one.is_file() and one.name.endswith(suffix))
        if found:
            paths += found
            patterns.append(os.path.join(glob.escape(str(named)), f"*{suffix}"))
    if not paths:
        from dpfl_plugin.data.table_reader import TextFormat, open_table

        for other in sorted(one for one in path.iterdir() if one.is_file())[:1]:
            open_table(other, TextFormat()).close()  # which names a kind that is not read, such as Stata's
        named_as = " or ".join(f"*{suffix}" for suffix in suffixes)
        raise DataError(f"{str(path)!r}: the folder holds no file named {named_as}.")
    return paths, patterns


def _pattern(path: Path, folder: Path) -> str:
    """A pattern, as the configuration names it: from its own folder, or by its whole path."""
    whole, root = Path(os.path.abspath(path)), Path(os.path.abspath(folder))
    if whole.is_relative_to(root):
        return str(whole.relative_to(root))
    return str(path) if path.is_absolute() else os.path.join(glob.escape(str(Path.cwd())), os.path.normpath(path))


def _label(own: OwnData, path: Path, header: list[str]) -> tuple[str, bool]:
    if own.label is not None:
        if own.label not in header:
            raise _no_column("label", own.label, path, header)
        return own.label, False
    if not own.guess_label:
        raise ConfigError(
            f"label is missing: which column of {path} is to be predicted? Columns: {column_list(header[:30])}. "
            "guess_label chooses one by its name, or takes the last."
        )
    known = {name.lower(): name for name in reversed(header)}
    return next((known[name] for name in LABELS if name in known), header[-1] if header else ""), True


def _no_column(option: str, name: str, path: Path, header: Sequence[str]) -> ConfigError:
    return ConfigError(
        f"{option}={name!r}{nearest(name, header)}: {path} has no such column. Columns: {column_list(header[:30])}."
    )


def _words(table: TableReader, special: set[str | None]) -> list[str]:
    """Columns most of whose cells are no numbers; a few that are not are errors, which reading reports."""
    import pyarrow.compute as pc

    from dpfl_plugin.data.cells import plain

    names = [name for name in dict.fromkeys(table.header) if name not in special]
    filled, numeric = Counter[str](), Counter[str]()
    for part in table.rows(names, ErrorCollector(Path())):
        for name, cells in part.items():
            counts = pc.value_counts(pc.utf8_trim_whitespace(plain(cells)).drop_null())
            for word, often in zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True):
                filled[name] += often * bool(word)
                numeric[name] += often * is_number(word)
    return [name for name in names if 2 * numeric[name] < filled[name]]
