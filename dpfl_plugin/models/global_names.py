"""Which names a function's code looks up outside itself: what is behind them decides what it computes, too."""

from __future__ import annotations

import dis
import functools
import types
from typing import Final

_OF_A_MODULE: Final = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})


@functools.lru_cache(maxsize=4096)
def names_in(code: types.CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """(names that it looks up in its module, names that it looks up anywhere, attributes included).

    Of functions that are defined within it, too.
    """
    of_module = {found.argval for found in dis.get_instructions(code) if found.opname in _OF_A_MODULE}
    anywhere = set(code.co_names)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            more, elsewhere = names_in(inner)
            of_module |= more
            anywhere |= elsewhere
    return frozenset(of_module), frozenset(name for name in anywhere if not _is_pythons(name))


def _is_pythons(name: str) -> bool:
    """Of a module they say where it is, and not what it computes."""
    return name.startswith("__") and name.endswith("__")
