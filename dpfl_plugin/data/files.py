"""Tables and arrays of a user's own: CSV and NPZ files."""

from __future__ import annotations

import hashlib
import itertools
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpfl_plugin.core.outcomes import CLASSES, Outcome
from dpfl_plugin.data.base import AS_READ, NOT_PUBLIC, Dataset, Features, Integers
from dpfl_plugin.data.error_collector import quantity
from dpfl_plugin.data.fetch import DataSource
from dpfl_plugin.data.identifiers import identifiers
from dpfl_plugin.data.labels import Labels, found_names, no_labels, numbers_of, plain_names
from dpfl_plugin.data.names import of_files
from dpfl_plugin.data.outcome_option import Option, labels_of, parse
from dpfl_plugin.data.persons import numbers
from dpfl_plugin.data.table import FILL_IN, Columns, Table
from dpfl_plugin.errors import ConfigError, DataError

MAX_CLASSES = 1000
MOST_NAMED = 5
TWICE: Final = (
    "Each record would be in all that both release, where epsilon counts it once. Name each file once, and no copies."
)


def csv(
    source: DataSource,
    *,
    files: str | list[str],
    test_files: str | list[str] | None = None,
    label_column: str = "label",
    silo_column: str | None = None,
    ignore_columns: list[str] | None = None,
    classes: list[int | str] | None = None,
    delimiter: str = ",",
    person_column: str | None = None,
    outcome: str | dict[str, Any] | None = None,
) -> Dataset:
    """Records from CSV files with a header (also .csv.gz): one file for each silo, or a column that names the silo.

    files, test_files: paths or glob patterns, relative ones from the configuration file's folder; several files are
    one silo each unless ``silo_column`` is given. Every column but the label, the silo, the person and
    ``ignore_columns`` is a feature and must be numeric; all files have the same columns, in any order. classes: the
    labels in order, which then are not read from private records; by default all values found, sorted. person_column:
    whose record it is; the same name is the same person, in every file. outcome: what labels are, if not classes:
    {kind: regression, range: [0, 100]}, {kind: counts, range: [0, 20]}, or ordinal (docs/outcomes.md).

    Raises:
        DataError: a file is missing or not such a table; the message names file, line, column and value.
        ConfigError: an option names no column, or the test files do not match the files.
    """
    if len(delimiter) != 1:
        raise ConfigError(f"delimiter={delimiter!r} must be one character.")
    columns = Columns(label_column, silo_column, tuple(ignore_columns or ()), delimiter, person_column)
    if silo_column is not None:  # every file has to be read to know whose records are in it
        source = replace(source, ownership=None)
    return joined(source, files, test_files, classes, columns.read, outcome)


def npz(
    source: DataSource,
    *,
    files: str | list[str],
    test_files: str | list[str] | None = None,
    classes: list[int | str] | None = None,
    outcome: str | dict[str, Any] | None = None,
) -> Dataset:
    """Records from NumPy .npz files with arrays x (or features) [n, *shape], y (or labels) [n] and perhaps silo [n] and
    person [n], whose record it is.

    Options as in `csv`, with any ``outcome`` (labels as `Outcome` says): several files are one silo each, unless they
    hold an array ``silo``. Pickled objects are never read.

    Raises:
        DataError: a file is missing or does not hold such arrays; the message names the file.
        ConfigError: the test files do not match the files.
    """
    known, _ = parse(outcome, classes)
    return joined(source, files, test_files, classes, lambda path: _read_arrays(path, known), outcome)


def check_apart(paths: Sequence[Path]) -> None:
    """Raise DataError where two paths lead to one file, as links do."""
    known: dict[tuple[int, int], Path] = {}
    for path in paths:
        if not path.exists():  # which is told when it is read
            continue
        status = path.stat()
        other = known.setdefault((status.st_dev, status.st_ino), path)
        if other is not path:
            raise DataError(f"data.dataset.files: {other} and {path} are the same file. {TWICE}")


def check_contents(tables: Sequence[tuple[Path, Features, NDArray[Any]]], columns: Sequence[object] = ()) -> None:
    """Raise DataError where one file of this process is a copy of another.

    Args:
        tables: (path, features, labels). columns: of each, where they are not the same in all.
    """
    known: dict[bytes, Path] = {}
    for (path, *arrays), names in itertools.zip_longest(tables, columns):
        hasher = hashlib.sha256(repr((names, arrays[0].shape, arrays[1].dtype.kind)).encode())
        for values in arrays:
            hasher.update(np.ascontiguousarray(values).data)
        other = known.setdefault(hasher.digest(), path)
        if other is not path:
            raise DataError(f"data.dataset.files: {other} and {path} hold exactly the same records. {TWICE}")


def joined(
    source: DataSource,
    files: str | list[str],
    test_files: str | list[str] | None,
    classes: list[int | str] | None,
    read: Callable[[Path], Table],
    outcome: Option = None,
) -> Dataset:
    """The records of all tables; other arguments as those of `csv`.

    Args:
        read: the table of one of the paths that ``source`` finds for ``files``.

    Raises:
        DataError, ConfigError: as `csv`.
    """
    known, label_names = parse(outcome, classes)
    paths, test_paths = source.paths(files, "files"), source.paths(test_files, "test_files") if test_files else []
    check_apart(paths)
    owned = source.ownership if len(paths) > 1 and len(test_paths) in (0, len(paths)) else None
    held = [i for i in range(len(paths)) if owned is None or owned.holds(i)]
    train = [read(paths[i]) for i in held]
    check_contents(
        [(table.path, table.features, table.labels.astype(str)) for table in train], [table.columns for table in train]
    )
    test = [read(path) for i, path in enumerate(test_paths) if owned is None or i in held]
    # What is public of all files, those of other processes included.
    own_labels = _names([*train, *test]) if known.has_classes else []
    own: dict[str, Any] = {"tables": [_head(table) for table in train], "labels": own_labels}
    answers = [own] if owned is None else owned.agree(own)
    first = next(head for answer in answers for head in answer["tables"] if head[0] == str(paths[0]))
    if owned is not None and first[3]:
        return joined(replace(source, ownership=None), files, test_files, classes, read, outcome)
    columns = tuple(first[1])
    train, test = ([_like_first(table, first) for table in part] for part in (train, test))
    names, derived, labels, notes = _labels(
        [*train, *test], known, list(label_names), classes, lambda: _found(answers, classes, train), paths[0]
    )
    if owned is None:  # of all records, or of none: a process that holds some of the silos cannot tell
        of_tables = {about: note for table in train[::-1] for about, note in table.notes}
        notes = (*notes, *identifiers(train), *of_tables.values())
    every = [table._replace(labels=part) for table, part in zip([*train, *test], labels, strict=True)]
    return assembled(
        every[: len(train)],
        every[len(train) :],
        paths,
        None if len(paths) == 1 else held,
        known,
        names,
        columns=columns,
        shape=first[2],
        notes=notes,
        caveats=_caveats(columns, names, derived=derived, outcome=known),
        part_of=None if owned is None else len(paths),
    )


def assembled(
    train: Sequence[Table],
    test: Sequence[Table],
    paths: list[Path],
    held: list[int] | None,
    outcome: Outcome,
    names: Sequence[str],
    *,
    columns: tuple[str, ...],
    shape: Sequence[int],
    notes: tuple[str, ...],
    caveats: tuple[str, ...],
    part_of: int | None,
) -> Dataset:
    """The records of tables whose labels are those of a model.

    Args:
        paths: of all training tables; held: the places among them of ``train``, None for a single one, which is no
            silo. names: of classes, or of labels. shape: of a record. part_of: how many silos there are, where other
            processes hold some of them.
    """
    groups, test_groups = groups_of(train, test, held)
    silo_names = names_of_silos(train, paths) if groups is not None or part_of is not None else ()
    data = _records(train, groups, outcome, names, shape)
    own_test = _records(test, test_groups, outcome, names, shape) if test else None
    if part_of is None and outcome.has_classes:
        notes += _rare_labels(train, test, groups, list(names), silo_names)
    return replace(
        data,
        test=own_test,
        caveats=caveats,
        part_of=part_of,
        silo_names=silo_names,
        columns=columns,
        notes=notes,
        class_names=tuple(names),
    )


def _records(
    tables: Sequence[Table], groups: Integers | None, outcome: Outcome, names: Sequence[str], shape: Sequence[int]
) -> Dataset:
    """Those of tables, of which a process may hold none."""
    features, labels = [table.features for table in tables], [table.labels for table in tables]
    known = [table.has_label for table in tables]
    return Dataset(
        features[0] if len(tables) == 1 else np.concatenate([np.zeros((0, *shape), np.float32), *features]),
        labels[0] if len(tables) == 1 else np.concatenate([no_labels(outcome, len(names)), *labels]),
        outcome.num_outputs(len(names)),
        groups,
        persons=_persons(tables),
        outcome=outcome,
        usable=None if all(part.all() for part in known) else np.concatenate(known),
    )


def _labels(
    tables: list[Table],
    outcome: Outcome,
    label_names: list[str],
    classes: Sequence[int | str] | None,
    names_found: Callable[[], list[str]],
    path: Path,
) -> tuple[list[str], bool, list[Labels], tuple[str, ...]]:
    """(names of classes or labels, whether they came from the records, labels of each table, notes)"""
    if outcome.has_classes:
        names, derived = _class_names(names_found(), None if classes is None else list(classes), path)
        return names, derived, _label_numbers(tables, names), ()
    parts, notes = labels_of(tables, outcome, label_names)
    return label_names, False, parts, tuple(notes)


def _found(
    answers: Sequence[Mapping[str, Any]], classes: Sequence[int | str] | None, train: Sequence[Table]
) -> list[str]:
    """The labels that occur in all processes' tables.

    Raises:
        DataError: they look like a quantity, and nobody named the classes.
    """
    names = sorted(found_names({name for answer in answers for name in answer["labels"]}), key=_order)
    if classes is None and train and train[0].label_column:
        doubt = quantity(train[0].path, train[0].label_column, names)
        if doubt is not None:
            raise DataError(doubt)
    return names


def _caveats(columns: Sequence[str], names: Sequence[str], *, derived: bool, outcome: Outcome) -> tuple[str, ...]:
    """What everybody is told of how the tables were read."""
    listed = ", ".join(f"{name} -> {number}" for number, name in enumerate(names[:20]))
    mapping = f"labels: {listed}{', ...' if len(names) > 20 else ''}"
    if outcome.kind != "classes":
        mapping = f"outcome: {outcome.kind}" + (f"; {mapping}" if names else "")
    said_of_columns = ""
    if columns:
        shown = ", ".join(columns[:30]) + (", ..." if len(columns) > 30 else "")
        said_of_columns = f"{len(columns)} feature{'s' * (len(columns) != 1)}: {shown}; "
    if not derived:
        return (f"{AS_READ}{said_of_columns}{mapping}",)
    caveat = "the classes were read from the records of all silos; name them in `classes` to keep that from leaking"
    # A single record may have brought a class, whose name may say anything.
    return f"{AS_READ}{said_of_columns}{len(names)} classes", f"{AS_READ}{mapping}; {NOT_PUBLIC}", caveat


def _like_first(table: Table, first: Sequence[Any]) -> Table:
    """The table with its features in the order of the first file's, of which this is the head.

    Raises:
        DataError: it does not have what that has.
    """
    path, columns, shape, with_silos = Path(first[0]), tuple(first[1]), tuple(first[2]), first[3]
    table = _reorder(table, columns, path)
    if table.features.shape[1:] != shape or (table.silos is not None) != with_silos:
        raise DataError(
            f"{table.path}: features {table.features.shape[1:]}, silo names {table.silos is not None}; "
            f"{path} has {shape}, {with_silos}. All files must agree."
        )
    return table


def _persons(tables: Sequence[Table]) -> Integers | None:
    """Whose records they are, where all tables say it.

    Raises:
        DataError: some do and some do not.
    """
    known = [table.persons for table in tables if table.persons is not None]
    if not known:
        return None
    if len(known) < len(tables):
        without = next(table.path for table in tables if table.persons is None)
        raise DataError(
            f"{without} does not say whose records it holds, and other files do: give all of them `person`."
        )
    return np.concatenate([numbers(names.tolist()) for names in known])


def names_of_silos(train: Sequence[Table], paths: list[Path]) -> tuple[str, ...]:
    """By number, as `groups_of` gives them."""
    if train and train[0].silos is not None:
        return tuple(
            sorted({name for table in train if table.silos is not None for name in _plain(table.silos)}, key=_order)
        )
    return of_files(paths)


def _rare_labels(
    train: Sequence[Table],
    test: Sequence[Table],
    groups: Integers | None,
    names: list[str],
    silo_names: tuple[str, ...],
) -> tuple[str, ...]:
    """What looks like a slip of the pen: labels of a single record, or that one silo alone has."""
    notes = []
    known = [table.has_label for table in train]
    labels = np.concatenate([table.labels[mask] for table, mask in zip(train, known, strict=True)])
    own_test = [table.labels[table.has_label] for table in test]
    counts = np.bincount(np.concatenate([labels, *own_test]), minlength=len(names))
    alone = [names[number] for number in np.flatnonzero(counts == 1)]
    if alone:
        notes.append(f"{_listed(alone, 'label', 'labels')} on one record only: is it a class, or a misprint?")
    if groups is not None and len(silo_names) > 1:
        silos = groups[np.concatenate(known)]
        holders = [np.unique(silos[labels == number]) for number in range(len(names))]
        single = [number for number in range(len(names)) if counts[number] > 1 and len(holders[number]) == 1]
        for number in single[:MOST_NAMED]:
            where = silo_names[int(holders[number][0])]
            notes.append(f"label {names[number]!r} is in one silo only: {where}")
        if len(single) > MOST_NAMED:
            notes.append(f"{len(single) - MOST_NAMED} more labels are in one silo only")
    return tuple(notes)


def _listed(names: list[str], singular: str, plural: str) -> str:
    """E.g. "labels 'a', 'b', ..."."""
    shown = ", ".join(map(repr, names[:MOST_NAMED])) + ", ..." * (len(names) > MOST_NAMED)
    return f"{singular if len(names) == 1 else plural} {shown}"


def _head(table: Table) -> list[Any]:
    """What is public of a table: its path, columns, shape of features, and whether it names silos."""
    return [str(table.path), list(table.columns), list(table.features.shape[1:]), table.silos is not None]


def _reorder(table: Table, columns: tuple[str, ...], first: Path) -> Table:
    """The table with its features in the order of ``columns``, those of the file ``first``."""
    if table.columns == columns:
        return table
    missing, extra = set(columns) - set(table.columns), set(table.columns) - set(columns)
    if missing or extra:
        raise DataError(
            f"{table.path}: other columns than {first}: lacks {sorted(missing) or 'none'}, "
            f"has also {sorted(extra) or 'none'}."
        )
    order = [table.columns.index(name) for name in columns]
    return table._replace(features=table.features[:, order], columns=columns)


def groups_of(
    train: Sequence[Table], test: Sequence[Table], held: list[int] | None
) -> tuple[Integers | None, Integers | None]:
    """The silo of every record; without silo names that is the place of its file, of which ``held`` are here."""
    if train and train[0].silos is not None:
        written = [_plain(table.silos) for table in train if table.silos is not None]
        number = {
            name: index for index, name in enumerate(sorted({name for names in written for name in names}, key=_order))
        }
        train_groups = np.array([number[name] for names in written for name in names], dtype=np.int64)
        if not test:
            return train_groups, None
        test_groups: list[int] = []
        for table in test:
            for name in _plain(table.silos) if table.silos is not None else []:
                if name not in number:
                    raise DataError(f"{table.path}: silo {name!r} has no training records.")
                test_groups.append(number[name])
        return train_groups, np.array(test_groups, dtype=np.int64)
    if held is None:  # one file, which is no silo
        return None, None
    if len(test) not in (0, 1, len(train)):
        raise ConfigError(
            f"test_files names {len(test)} files, files names {len(train)}: give one for each silo, or one for all."
        )
    return _numbered(train, held), _numbered(test, held) if len(test) == len(train) else None


def _numbered(tables: Sequence[Table], held: list[int]) -> Integers:
    return np.repeat(np.array(held, dtype=np.int64), [len(table.labels) for table in tables])


def _names(tables: list[Table]) -> list[str]:
    """The labels that occur, at most so many that it is told that they are too many."""
    return sorted({name for table in tables for name in _plain(table.labels)}, key=_order)[: MAX_CLASSES + 1]


def _class_names(names: list[str], classes: list[int | str] | None, path: Path) -> tuple[list[str], bool]:
    """The class names in order, and whether they came from the records."""
    if classes is not None:
        order = [str(name) for name in classes]
        if len(set(order)) != len(order):
            raise ConfigError(f"classes={classes!r} names a class twice.")
        return order, False
    if len(names) > MAX_CLASSES:
        raise DataError(f"{path}: more than {MAX_CLASSES} different labels; is this the column of the class?")
    if len(names) < 2:
        raise DataError(f"{path}: all labels are {names[0]!r}; a classifier needs at least 2 classes.")
    return names, True


def _label_numbers(tables: list[Table], order: list[str]) -> list[Integers]:
    """Labels of each table as numbers."""
    written = [_plain(table.labels) for table in tables]
    number = numbers_of(order, (name for names in written for name in names))
    for table, names in zip(tables, written, strict=True):
        unknown = next((row for row, name in enumerate(names) if name not in number), None)
        if unknown is not None:
            raise DataError(
                f"{table.place(unknown)}: {names[unknown]!r} is not one of the classes {', '.join(order[:20])}. "
                "Name it in classes, correct it, or leave the record out."
            )
    return [np.array([number[name] for name in names], dtype=np.int64) for names in written]


def _plain(values: NDArray[Any]) -> list[str]:
    return [str(value) for value in values.tolist()]


def _order(name: str) -> tuple[int, float, str]:
    """Numbers by value, before words."""
    try:
        return 0, float(name), name
    except ValueError:
        return 1, 0.0, name


def _read_arrays(path: Path, outcome: Outcome) -> Table:
    arrays = read_npz(path)
    x, y = _first(arrays, ("x", "features"), path), _first(arrays, ("y", "labels"), path)
    return table_of_arrays(path, x, y, arrays.get("silo"), arrays.get("person"), outcome)


def table_of_arrays(
    path: Path,
    x: NDArray[Any],
    y: NDArray[Any],
    silo: NDArray[Any] | None,
    person: NDArray[Any] | None = None,
    outcome: Outcome = CLASSES,
) -> Table:
    """Features [n, *shape], labels [n] and perhaps silo and person names [n] as a table; ``path`` is what messages call
    it. Labels of an ``outcome`` without classes are looked at when they are read by it.

    Raises:
        DataError: they are of other types or lengths, a number is not finite, or a name is empty.
    """
    if not x.ndim:
        raise DataError(f"{path}: features must be numbers of shape [records, ...], got one number alone.")
    words = {"silo": silo, "person": person} | ({"labels": y} if outcome.has_classes else {})
    named = {
        name: plain_names(array, len(x), f"{path}: {name}", classes=name == "labels")
        for name, array in words.items()
        if array is not None
    }
    for name, array in named.items():
        if array.dtype.kind == "U" and not array.astype(bool).all():
            record = int(np.flatnonzero(~array.astype(bool))[0])
            raise DataError(f"{path}, record {record}: its {name.removesuffix('s')} is empty: {FILL_IN}.")
    silo, person = named.get("silo"), named.get("person")
    return Table(path, numeric_features(x, path), named.get("labels", y), silo, (), persons=person)


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of an NPZ file; pickled objects are refused.

    Raises:
        DataError: it is no NPZ file, is damaged, or holds pickled objects.
    """
    try:
        # Opened here: NumPy leaves a file that it cannot read open.
        with path.open("rb") as file:
            if file.read(2) != b"PK":
                raise zipfile.BadZipFile("it does not begin as one, whatever its name")
            file.seek(0)
            arrays = np.load(file, allow_pickle=False)
            return {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, EOFError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{path} is not an NPZ file of plain arrays: {error}. Write it with numpy.savez(x=..., y=...)."
        ) from error


def _first(arrays: dict[str, NDArray[Any]], names: Sequence[str], path: Path) -> NDArray[Any]:
    for name in names:
        if name in arrays and arrays[name].ndim > 0:
            return arrays[name]
    raise DataError(f"{path} holds no array {' or '.join(names)}; it holds {', '.join(arrays) or 'nothing'}.")


def numeric_features(x: NDArray[Any], path: Path) -> Features:
    """Features [n, *shape] as float32.

    Raises:
        DataError: they are not numbers, not [n, *shape], or too large for float32 (or not finite).
    """
    if x.dtype.kind not in "fiub" or x.ndim < 2:
        raise DataError(f"{path}: features must be numbers of shape [records, ...], got {x.dtype} {x.shape}.")
    with np.errstate(over="ignore"):
        features = x.astype(np.float32)
    if not np.isfinite(features).all():
        place = tuple(int(index) for index in np.argwhere(~np.isfinite(features))[0])
        raise DataError(f"{path}: the feature at {place} is {x[place]}. Remove the record or fill it in.")
    return features
