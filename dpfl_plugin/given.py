"""Objects of a Python program that take a plugin's place: a model, records, a loss, an algorithm.

No file can say what they are. So a configuration names them by a digest, ``module: dpfl_plugin.given:model_0123...``,
which this module gives back as long as the program has them. In another process they are missing, and that is said.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, Final

from dpfl_plugin.errors import PluginError

MODULE: Final = __name__
_NAME: Final = re.compile(r"(data|model|loss|algorithm|backbone)_[0-9a-f]{16}")
_CALLED: Final = {
    "data": "the records",
    "model": "the model",
    "loss": "the loss",
    "algorithm": "the algorithm",
    "backbone": "the backbone",
}
RESUME: Final = "Call dpfl.train with the same objects, the same out and resume=True."
USE: Final = (
    "The model cannot be used without them, and no command has them. Run the program that trained it again, unchanged "
    "and with the same out (in a notebook, call dpfl.train with the same objects and the same out): nothing is trained "
    "again, and dpfl.predict(run, ...), run.model and run.export(folder) work there. The weights are in "
    "model.safetensors. A function of an imported module, as the loss or to make the model, is found without this."
)
_held: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()


class MissingError(PluginError):
    """A configuration names objects of a Python program that this process does not have; the message says which."""


def hold(kind: str, digest: str, plugin: Any) -> str:
    """Where a configuration finds ``plugin``, as ``package.module:name``, for as long as somebody else holds it, too.

    Args:
        kind: data, model, loss, algorithm or backbone. digest: of what it is, in hex.
    """
    name = f"{kind}_{digest[:16]}"
    assert _NAME.fullmatch(name), name
    _held[name] = plugin
    return f"{MODULE}:{name}"


def held(kind: str, digest: str) -> Any:
    """What is held under this digest; None for nothing."""
    return _held.get(f"{kind}_{digest[:16]}")


def is_given(path: str | None, kind: str) -> bool:
    """Whether a configuration's ``package.module:name`` is such an object."""
    return path is not None and path.startswith(f"{MODULE}:{kind}_")


def names_object(path: str) -> bool:
    """Whether it names an object of the program of this very process, for which nothing is imported."""
    module, _, name = path.partition(":")
    return module == MODULE and _NAME.fullmatch(name) is not None


def check_all(values: Any, *, records: bool = True) -> None:
    """Raise MissingError unless all objects that a configuration's values name are here; the message names each.

    Args:
        records: whether to train; a finished run's model is used without its records.
    """
    missing = sorted({name for name in _named(values) if name not in _held})
    if not records:
        missing = [name for name in missing if not name.startswith("data_")]
    if missing:
        raise _missing(missing, RESUME if records else USE)


def _named(values: Any) -> Iterator[str]:
    if isinstance(values, str):
        if names_object(values):
            yield values.partition(":")[2]
    elif isinstance(values, Mapping):
        for value in values.values():
            yield from _named(value)
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _named(value)


def _missing(names: list[str], advice: str = RESUME) -> MissingError:
    listed = " and ".join(f"{_CALLED[name.partition('_')[0]]} ({name})" for name in names)
    return MissingError(
        f"{listed}: given in Python as objects, which no file holds and which this process does not have, or not with "
        f"the same values. {advice}"
    )


def __getattr__(name: str) -> Any:
    if not _NAME.fullmatch(name):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = _held.get(name)
    if found is None:
        raise _missing([name])
    return found
