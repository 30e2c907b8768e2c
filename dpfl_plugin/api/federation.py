"""Records of a Python program, or of a registered data set, as the silos of a run."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, Unpack

import numpy as np
import pydantic
import torch

from dpfl_plugin import given, registry
from dpfl_plugin.adapters.loaders import check_apart
from dpfl_plugin.adapters.records import all_records
from dpfl_plugin.api.federation_verbs import FederationVerbs
from dpfl_plugin.api.objects import backbone_factory, digest, plain
from dpfl_plugin.config.keys import DataKeys, shows
from dpfl_plugin.config.load import refusal
from dpfl_plugin.config.schema import DataConfig
from dpfl_plugin.core.text import counted
from dpfl_plugin.data.base import Dataset
from dpfl_plugin.data.error_collector import FRAME, NAME_THEM
from dpfl_plugin.data.fetch import DataSource
from dpfl_plugin.data.files import joined, table_of_arrays
from dpfl_plugin.data.labels import LabelType, is_mixed, type_of, whole
from dpfl_plugin.data.outcome_option import parse
from dpfl_plugin.data.schema import TableSchema
from dpfl_plugin.data.table import Columns, Table, is_frame
from dpfl_plugin.errors import ConfigError, DataError, require
from dpfl_plugin.models.fields import Fields
from dpfl_plugin.runs.backbone import backbone
from dpfl_plugin.synonyms import meant

if TYPE_CHECKING:
    import pandas


SHOWN: Final = 6  # silos that a federation names when it is printed
KEYS: Final = tuple(key for key in DataConfig.model_fields if key != "dataset")


class Given:
    """Tables of a program in a data set plugin's place. No code of it counts.

    A configuration names them by what they are called, by their columns and by a number, never by what they hold: it,
    and the id that a run has by it, are shown to others, who could try guesses of a record by a digest. Whether the
    records are those that a run began with is told by `training.marks`, under a key.
    """

    def __init__(self, tables: Mapping[str, Table], label_type: LabelType = "text") -> None:
        """label_type: what the program's labels are, of which the tables may hold the text alone."""
        self._tables, self.label_type = dict(tables), label_type

    def __call__(
        self,
        source: DataSource,
        *,
        classes: list[int | str] | None = None,
        outcome: str | dict[str, Any] | None = None,
        label_column: str = "label",
        silo_column: str | None = None,
        ignore_columns: list[str] | None = None,
        person_column: str | None = None,
    ) -> Dataset:
        # The columns were used when the tables were made: `runs.prediction_input` reads new records by them.
        names = list(self._tables)
        made = joined(_Names(seed=source.seed), names, None, classes, lambda path: self._tables[str(path)], outcome)
        return replace(made, label_type=self.label_type)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Federation of arrays, data sets or a data frame cannot be pickled: the file would hold all records, and "
            "another process could not train on it. Make it again there; a Federation.load of files can be sent."
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Given:
        return self  # its tables are never written to

    def __repr__(self) -> str:
        tables = list(self._tables.values())
        names = [sorted(set(map(str, one.silos.tolist()))) for one in tables if one.silos is not None]
        silos = list(dict.fromkeys(name for some in names for name in some))
        shown = ", ".join([*silos[:SHOWN], *(["..."] if len(silos) > SHOWN else [])])
        where = f" at {len(silos)} silo{'' if len(silos) == 1 else 's'} ({shown})" if silos else ""
        shape = tables[0].features.shape[1:]
        features = counted(shape[0], "feature") if len(shape) == 1 else f"{'x'.join(map(str, shape))} features"
        count = sum(len(one.features) for one in tables)
        return f"{count:,} record{'s' * (count != 1)} of {features}{where}"

    def check_rows(self, fields: Fields) -> None:
        """Raise DataError where a record, as it was given, is none of these fields; the message names silo and row."""
        for table in self._tables.values():
            if (found := fields.wrong(torch.from_numpy(table.features))) is not None:
                number, wrong = found
                raise DataError(f"{table.path}, record {number}: {wrong}")

    @property
    def digest(self) -> str:
        """Of all that they hold; it stays in this process."""
        return digest(*(part for name, table in self._tables.items() for part in (name.encode(), *_bytes(table))))

    def kept(self) -> tuple[str, Given]:
        """(by what a configuration names them, who holds them): of tables that are made alike the first of this process
        are number 0, others that hold something else have the next free number."""
        alike = [repr((name, t.features.shape[1:], t.columns, t.label_column)) for name, t in self._tables.items()]
        mine = self.digest
        for number in itertools.count():
            named = digest(json.dumps([number, alike]).encode())
            other = given.held("data", named)
            if other is None or other.digest == mine:
                return named, other or self
        raise AssertionError("numbers do not end")


class _Names(DataSource):
    """Finds tables by their names, where a plugin looks for files."""

    def paths(self, named: Any, key: str) -> list[Path]:
        return [Path(name) for name in named]


@dataclass(frozen=True)
class Federation(FederationVerbs):
    """Which records, at which silos: what `data` is in a file. Made by one of the functions below.

    All of them take the other keys of `data`, too: ``partition``, ``num_silos``, ``test``, ``test_fraction``,
    ``max_records_per_silo``, ``preprocess``, ``folder``, ``memory_map`` (docs/configuration.md).

    Attributes:
        data: the keys of `data` that are given, as a file would hold them.
    """

    data: dict[str, Any]
    _held: object = field(default=None, compare=False)

    def __repr__(self) -> str:
        held = self._held[0] if isinstance(self._held, tuple) else self._held
        keys = {key: value for key, value in self.data.items() if key != "dataset"}
        dataset = self.data["dataset"]
        if isinstance(held, Given):
            parts = [repr(held)]
        else:
            parts = [repr(dataset["name"] if set(dataset) == {"name"} else dataset)]
        return f"Federation({', '.join([*parts, *(f'{key}={_block(value)!r}' for key, value in keys.items())])})"

    def check_rows(self, fields: Fields) -> None:
        """Check records that this program holds, before any step changes them, as inputs of a `FieldsModel`.

        Raises:
            DataError: one has a word or a category that the fields do not have; the message names silo and row.
        """
        if isinstance(self._held, Given) and not self.data.get("preprocess"):
            self._held.check_rows(fields)

    @classmethod
    def load(cls, dataset: str | Mapping[str, Any], **keys: Any) -> Federation:
        """A registered data set (`dpfl list datasets`), with its options and the keys of `data`.

        Relative paths start at the working folder.

        Raises:
            ConfigError: there is no such data set, or a key is wrong.
        """
        known_kind = isinstance(dataset, str | Mapping)
        require(known_kind, "dataset", dataset, "be the name of a data set, or a block as in a file")
        block: dict[str, Any] = {"name": dataset} if isinstance(dataset, str) else dict(dataset)
        block |= {key: value for key, value in keys.items() if key not in KEYS}
        if isinstance(name := block.get("name"), str):
            options = {key: value for key, value in block.items() if key not in ("name", "module")}
            plugin = registry.load("datasets", name)
            known = registry.options(plugin)
            for key in options:
                if key not in known:
                    near = meant(key, [*known, *KEYS], "data") or (
                        f". Of the data set: {', '.join(known) or 'none'}; of data: {', '.join(KEYS)}"
                    )
                    raise ConfigError(f"Federation.load({name!r}): {key} is not a known key{near}.")
            registry.check_options(plugin, options, where="data.dataset")
        return cls(_checked(plain(block), {key: value for key, value in keys.items() if key in KEYS}))

    @classmethod
    @shows(DataKeys)
    def from_frame(
        cls,
        frame: pandas.DataFrame,
        *,
        silo: str | None = None,
        label: str = "label",
        ignore_columns: list[str] | None = None,
        classes: list[int | float | str] | None = None,
        person: str | None = None,
        outcome: str | Mapping[str, Any] | None = None,
        **keys: Unpack[DataKeys],
    ) -> Federation:
        """Records of a data frame, read as a CSV file of it would be: a column names the silo, another the class.

        Args:
            frame: one row a record; it is copied. Every column but the label, the silo, the person and
                ``ignore_columns`` is a feature and must be numeric or True and False; its index is not looked at.
            silo: the column that names the silo; None to deal records out by ``partition``.
            person: the column that says whose record it is, for ``Privacy(unit="person")``.
            classes: the labels in order, which then are not read from private records. 1 names the label 1.0, too, but
                no other number or word that is not written alike.
            outcome: what labels are, if not classes: {"kind": "regression", "range": (0, 100)}, ... (docs/outcomes.md);
                of several columns: `from_table`.

        Raises:
            DataError: a value is missing, not finite or no number; the message names row (from 0), column and value.
            ConfigError: there is no such column, or a key is wrong.
        """
        _check_keys(keys, ("silo", "label", "person", "ignore_columns", "classes", "outcome"))
        if not is_frame(frame):
            raise ConfigError(f"from_frame needs a pandas DataFrame, not a {type(frame).__name__}. See from_arrays.")
        for key, value in {"label": label, "silo": silo, "person": person}.items():
            named = isinstance(value, str) or (key != "label" and value is None)
            numbered = f"Where columns are numbered, {NAME_THEM}." if isinstance(value, int) else ""
            require(named, key, value, "be the name of a column, as text", numbered)
        _check_list("ignore_columns", ignore_columns)
        from dpfl_plugin.data.table_reader import frame_reader

        reading = Columns(label, silo, tuple(ignore_columns or ()), ",", person)
        try:
            table = reading.parse(FRAME, frame_reader(frame))
        except ConfigError as error:
            said = str(error)
            for key in ("label", "silo", "person"):
                said = said.replace(f"{key}_column=", f"{key}=")
            raise type(error)(said) from error
        columns = {"silo_column": silo, "person_column": person, "ignore_columns": list(ignore_columns or ()) or None}
        columns |= {"label_column": None if label == "label" else label}
        read = {key: value for key, value in columns.items() if value is not None}
        held = Given({str(FRAME): table}, type_of([frame[label]]))
        return cls._of(held, classes, keys, natural=silo is not None, outcome=outcome, read=read)

    @classmethod
    @shows(DataKeys)
    def from_arrays(
        cls,
        silos: Mapping[str, tuple[Any, ...]],
        *,
        classes: list[int | float | str] | None = None,
        outcome: str | Mapping[str, Any] | None = None,
        fields: Fields | None = None,
        **keys: Unpack[DataKeys],
    ) -> Federation:
        """Records of arrays or tensors, {silo's name: (features [n, *shape], labels [n])}, which are copied; or
        (features, labels, persons [n]), with whose records they are as words or whole numbers. Labels are whole
        numbers, truth values or words, persons, too; arrays of objects hold one of these kinds.

        Silos are numbered in the order of their names, numbers by value and before words. outcome: what labels are, if
        not classes; then they are numbers, [n] or [n, k] (docs/outcomes.md). fields: of features, which are then rows
        [n, width] for a `FieldsModel`; they are checked now, not when the model is known.

        Raises:
            DataError: an array is of another type or length, or a value is not finite; the message names the silo.
            ConfigError: there is no silo, or a key is wrong.
        """
        if not isinstance(silos, Mapping) or not silos:
            raise ConfigError("from_arrays needs a mapping {silo's name: (features, labels)} of at least one silo.")
        tables, (known, _) = {}, parse(_plain_outcome(outcome), classes)
        for name, pair in silos.items():
            if not isinstance(pair, tuple | list) or len(pair) not in (2, 3):
                raise ConfigError(
                    f"silo {name!r}: must be a pair (features, labels), or (features, labels, persons), not a "
                    f"{type(pair).__name__}."
                )
            if not isinstance(name, str | int | np.integer) or not str(name).strip():
                raise ConfigError(f"a silo's name {name!r} must be a word or a whole number, and not empty.")
            where = Path(f"silo {name}")
            try:
                x, y, *persons = (np.array(_on_cpu(part)) for part in pair)
            except ValueError as error:
                raise DataError(
                    f"silo {name!r}: features and labels must be arrays, with rows of one length."
                ) from error
            if x.ndim and not len(x):
                raise DataError(f"{where} holds no records: leave it out.")
            if str(where) in tables:
                raise ConfigError(f"two silos are called {name!r}: give each a name of its own.")
            y = np.array(pair[1], dtype=object) if is_mixed(pair[1]) else y
            of_silo = np.full(len(x) if x.ndim else 0, str(name))
            tables[str(where)] = table_of_arrays(where, x, y, of_silo, persons[0] if persons else None, known)
        held = Given(tables, type_of(table.labels for table in tables.values()))
        if fields is not None:
            _check_fields(fields, keys)
            held.check_rows(fields)
        return cls._of(held, classes, keys, natural=True, outcome=outcome)

    @classmethod
    @shows(DataKeys)
    def from_datasets(
        cls,
        silos: Mapping[str, Any],
        *,
        classes: list[int | float | str] | None = None,
        outcome: str | Mapping[str, Any] | None = None,
        fields: Fields | None = None,
        **keys: Unpack[DataKeys],
    ) -> Federation:
        """Records of torch's data sets or loaders, {silo's name: data}, each record once; they are read here, now.

        Args:
            silos: of a ``DataLoader`` the records that its sampler gives; batches are drawn privately, not by it.
            fields: the inputs of records that are mappings or tuples, for a `FieldsModel` (docs/models.md).

        Raises:
            DataError: a silo holds no records, one of them twice, or one of another silo's.
            UnsupportedError: it cannot be told which records a loader gives, or they change from one time to the next.
        """
        if not isinstance(silos, Mapping) or not silos:
            raise ConfigError("from_datasets needs a mapping {silo's name: data set} of at least one silo.")
        if fields is not None:
            _check_fields(fields, keys)
            silos = {name: fields.dataset(data) for name, data in silos.items()}
        check_apart(dict(enumerate(silos.values())))
        arrays = {}
        for name, data in silos.items():
            if not (hasattr(data, "__getitem__") or hasattr(data, "__iter__")):
                raise DataError(f"silo {name}: is a {type(data).__name__}: give a torch data set or DataLoader.")
            try:
                arrays[name] = all_records(data)
            except DataError as error:
                raise type(error)(f"silo {name}: {error}") from error
        return cls.from_arrays(arrays, classes=classes, outcome=outcome, **keys)

    @classmethod
    @shows(DataKeys)
    def from_table(
        cls,
        data: pandas.DataFrame | Mapping[str, pandas.DataFrame],
        schema: TableSchema | Mapping[str, Any],
        **keys: Unpack[DataKeys],
    ) -> Federation:
        """Records of a data frame, or {silo's name: data frame}, read by a schema: words, dates, missing values.

        Args:
            schema: as ``data.schema`` in a file; it names label, silo and person, and says what each column holds.

        Raises:
            DataError: all that is wrong, by row (from 0), column and value. ConfigError: the schema or a key is wrong.
        """
        from dpfl_plugin.api import frames

        known = TableSchema.parse(schema)
        held = frames.encoded(data, known)
        natural = known.silo is not None or isinstance(data, Mapping)
        written = schema.model_dump(mode="json", exclude_unset=True) if isinstance(schema, TableSchema) else schema
        return cls._named(held, {"schema": plain(written)}, keys, natural=natural)

    def features(self, module: Any, *, then: Sequence[str | Mapping[str, Any]] = (), **options: Any) -> Federation:
        """The same records, each replaced by what a frozen module makes of it alone, after the steps of ``preprocess``.

        Args:
            module: an ``nn.Module``, which is copied, put in eval mode and never trained; or package.module:name of a
                factory. It must have been made without these records, e.g. trained on public data.
            then: further steps of ``preprocess``.
            options: of the step `backbone`: batch_size, cache, sha256, threads, device (docs/models.md).

        Raises:
            ConfigError: an option is wrong. A module that mixes records is refused when the records are read.
        """
        factory, held = backbone_factory(module)
        step = {"name": "backbone", "factory": factory, **plain(options)}
        registry.check_options(backbone, {key: step[key] for key in step if key != "name"}, where="backbone")
        steps = [*self.data.get("preprocess", ()), step, *plain(then)]
        return Federation({**self.data, "preprocess": steps}, (self._held, held))

    @classmethod
    def _of(
        cls,
        held: Given,
        classes: list[int | float | str] | None,
        keys: Mapping[str, Any],
        *,
        natural: bool,
        outcome: str | Mapping[str, Any] | None = None,
        read: Mapping[str, Any] | None = None,
    ) -> Federation:
        """``read``: by which columns of a data frame, as the options of a CSV file say it."""
        options: dict[str, Any] = {} if classes is None else {"classes": _plain_classes(classes)}
        options |= {} if outcome is None else {"outcome": _plain_outcome(outcome)}
        options |= plain(dict(read or {}))
        return cls._named(held, options, keys, natural=natural)

    @classmethod
    def _named(cls, held: Given, options: Mapping[str, Any], keys: Mapping[str, Any], *, natural: bool) -> Federation:
        """Records that this process holds, by the name that they have in a configuration."""
        _check_keys(keys)
        try:
            held(DataSource(), **options)  # what is wrong with the records is told here, not when they are used
        except DataError as error:
            raise type(error)(str(error).removeprefix("data.dataset.files: ")) from error
        named, held = held.kept()
        block: dict[str, Any] = {"module": given.hold("data", named, held), **options}
        partition = {"partition": {"name": "natural"}} if natural else {}
        return cls(_checked(block, {**partition, **keys}), held)


def _check_fields(fields: Fields, keys: Mapping[str, Any]) -> None:
    """
    Raises:
        ConfigError: they are none, or steps would change what they hold.
    """
    require(isinstance(fields, Fields), "fields", fields, "be dpfl.models.Fields(...), e.g. of a FieldsModel")
    if keys.get("preprocess"):
        raise ConfigError(
            "preprocess with fields: a step would change word numbers and masks, too. Prepare floats in the "
            "data set; for a frozen module, federation.features(FieldsModel(...))."
        )


def _block(value: Any) -> Any:
    """A block that has a name only, as the name."""
    return value["name"] if isinstance(value, dict) and set(value) == {"name"} else value


def _check_keys(keys: Mapping[str, Any], own: Sequence[str] = ()) -> None:
    """Raise ConfigError for a key that is none of `data`'s; ``own``: what the function takes besides them."""
    known = [*own, *KEYS]
    for key in keys:
        if key not in KEYS:
            near = meant(key, known, "data") or f". Known: {', '.join(known)}"
            raise ConfigError(f"{key} is not a known key{near}.")


def _check_list(key: str, value: object) -> None:
    require(value is None or isinstance(value, list | tuple), key, value, "be a list")


def _plain_classes(classes: object) -> list[int | str]:
    """As a file would hold them: a float by its whole number or its text, a truth value by its text.

    Raises:
        ConfigError: it is not a list of words, numbers and truth values.
    """
    require(isinstance(classes, list | tuple), "classes", classes, "be a list")
    assert isinstance(classes, list | tuple)
    found: list[int | str] = []
    for name in (item.item() if isinstance(item, np.generic) else item for item in classes):
        fine = isinstance(name, str | int) or (isinstance(name, float) and math.isfinite(name))
        require(fine, "classes", classes, f"be whole numbers, finite floats, truth values or words; {name!r} is none")
        by_text = str(name) if isinstance(name, bool | float) else name
        number = whole(by_text) if isinstance(name, float) else None
        found.append(by_text if number is None else number)
    return found


def _plain_outcome(outcome: object) -> Any:
    """As a file would hold it."""
    return plain(dict(outcome)) if isinstance(outcome, Mapping) else outcome


def _on_cpu(part: Any) -> Any:
    return part.detach().cpu().numpy() if hasattr(part, "detach") else part


def _bytes(table: Table) -> Iterator[bytes]:
    yield repr((table.features.shape, table.columns, table.label_column)).encode()
    yield np.ascontiguousarray(table.features).data.tobytes()
    for words in (table.labels, table.silos):
        yield b"" if words is None else "\0".join(map(str, words.tolist())).encode()
    if table.persons is not None:
        yield b"persons\0" + "\0".join(map(str, table.persons.tolist())).encode()


def _checked(block: Mapping[str, Any], keys: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of `data`, as a file would hold them."""
    data = {"dataset": dict(block), **plain(keys)}
    try:
        DataConfig(**data)
    except pydantic.ValidationError as error:
        raise refusal(error, "Federation", ("data",)) from None  # what pydantic says is in it, in our words
    return data
