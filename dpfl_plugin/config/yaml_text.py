"""YAML text to plain values; what YAML 1.1 would read as something that nobody meant is refused.

It reads 12:00:00 as 43200 (base 60) and 010 as 8 (base 8), takes a key that is given twice, and lets a few lines of
aliases stand for billions of values.
"""

from __future__ import annotations

import math
import re
from typing import Any, Final

import yaml

LARGEST: Final = 2**63 - 1  # of an integer: what follows counts in 64 bits
MOST_REPEATED: Final = 100_000  # values that aliases may stand for, beyond those that are written


class Loader(yaml.SafeLoader):
    """YAML 1.1 without its traps: 1e-5 is a number, a date is text, and what is ambiguous is an error."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._keys: dict[int, str] = {}  # by the identity of the value's node, for messages

    def get_single_node(self) -> yaml.Node | None:
        node = super().get_single_node()
        if node is not None:
            _check_size(node)
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise _wrong(key_node, "a key is not a plain word")
            if key_node.value in seen:
                raise _wrong(key_node, f"key {key_node.value!r} is given twice")
            seen.add(key_node.value)
            self._keys[id(value_node)] = f"{key_node.value}="
        return super().construct_mapping(node, deep)

    def construct_integer(self, node: yaml.ScalarNode) -> int:
        text, key = node.value, self._keys.get(id(node), "")
        if ":" in text:
            raise _base_60(node, key, super().construct_yaml_int(node))
        if _LEADING_ZERO.match(text):
            raise _wrong(
                node, f"{key}{text} begins with 0, as numbers of base 8 do: write it without, or as text: '{text}'"
            )
        value = super().construct_yaml_int(node) if len(text) <= _MOST_DIGITS else LARGEST + 1
        if abs(value) > LARGEST:
            shown = text if len(text) <= _MOST_DIGITS else f"{text[:20]}... ({len(text):,} digits)"
            raise _wrong(node, f"{key}{shown} is too large: an integer is at most {LARGEST}")
        return int(value)

    def construct_decimal(self, node: yaml.ScalarNode) -> float:
        if ":" in node.value:
            raise _base_60(node, self._keys.get(id(node), ""), super().construct_yaml_float(node))
        return super().construct_yaml_float(node)


class Dumper(yaml.SafeDumper):
    """Puts in quotes what `Loader` would not read as the text that it is: '08', '1e-5'."""


_FLOAT = re.compile(r"^[-+]?(\d+\.\d*|\.\d+|\d+)([eE][-+]?\d+)?$")
_INT = re.compile(r"^[-+]?\d+$")
_LEADING_ZERO = re.compile(r"^[-+]?0[0-9_]")
_MOST_OF_A_LINE = 60
_KEY = re.compile(r":\s")
_MOST_DIGITS = 100  # 64 of base 2, and marks between them
Loader.add_constructor("tag:yaml.org,2002:timestamp", lambda loader, node: str(node.value))
Loader.add_constructor("tag:yaml.org,2002:int", Loader.construct_integer)
Loader.add_constructor("tag:yaml.org,2002:float", Loader.construct_decimal)
for _kind in (Loader, Dumper):
    _kind.add_implicit_resolver("tag:yaml.org,2002:int", _INT, list("-+0123456789"))
    _kind.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


def parse(text: str) -> Any:
    """The value that YAML text is.

    Raises:
        yaml.YAMLError: it is no YAML, or holds what is read as something that nobody meant.
    """
    try:
        return yaml.load(text, Loader=Loader)  # a SafeLoader
    except RecursionError as error:
        raise yaml.YAMLError("values are nested too deeply to be read") from error
    except (ValueError, AttributeError, IndexError) as error:  # of a tag that its text does not fit: !!int x
        raise yaml.YAMLError(f"a value does not fit its tag ({error})") from error


def what_is_wrong(error: yaml.YAMLError, text: str) -> str:
    """Why text is no YAML, in words: where indentation does not fit, the parser's are of its own rules."""
    problem, mark = getattr(error, "problem", None), getattr(error, "problem_mark", None)
    lines = text.splitlines()
    ours = isinstance(error, yaml.constructor.ConstructorError)  # which are in words
    if ours or problem is None or mark is None or mark.line >= len(lines):
        return f"{problem or error}"
    line = lines[mark.line]
    held = f"{line.strip()[:_MOST_OF_A_LINE]!r}"
    if "'\\t'" in problem:
        return f"{held} is indented by a tab. Use spaces"
    if problem.startswith("mapping values are not allowed") and _KEY.search(line[: mark.column]) is not None:
        return f"{held} has a second colon: write the value in quotes, or each key in a line of its own"
    if problem.startswith(("mapping values are not allowed", "expected <block end>")):
        return (
            f"the indentation of {held} does not fit the lines above: keys of one block begin in the same column, and "
            "those inside a key further to the right"
        )
    return f"{problem}, at {held}"


def dump(value: Any) -> str:
    """YAML text that `parse` reads as the value, keys in their order."""
    return yaml.dump(value, Dumper=Dumper, sort_keys=False, allow_unicode=True)


def flow(value: Any) -> str:
    """The same in one line, e.g. {type: category, values: [a, b]}."""
    text = yaml.dump(value, Dumper=Dumper, sort_keys=False, allow_unicode=True, default_flow_style=True, width=math.inf)
    return text.removesuffix("\n").removesuffix("\n...")


def _check_size(root: yaml.Node) -> None:
    """Refuse a document whose aliases stand for far more than is written, or for themselves."""
    sizes: dict[int, int] = {}
    under_way: set[int] = set()

    def size(node: yaml.Node) -> int:
        if id(node) in sizes:
            return sizes[id(node)]
        if id(node) in under_way:
            raise _wrong(node, "an alias (*name) stands for what it is a part of")
        under_way.add(id(node))
        children = [] if isinstance(node, yaml.ScalarNode) else node.value
        if isinstance(node, yaml.MappingNode):
            children = [part for pair in node.value for part in pair]
        sizes[id(node)] = 1 + sum(size(child) for child in children)
        return sizes[id(node)]

    if size(root) - len(sizes) > MOST_REPEATED:
        what = (
            f"its aliases (*name) stand for {size(root):.3g} values; {len(sizes)} are written. Write out what is meant"
        )
        raise _wrong(root, what)


def _base_60(node: yaml.ScalarNode, key: str, value: float) -> yaml.YAMLError:
    text = node.value
    return _wrong(
        node, f"{key}{text} without quotes is the number {value:.15g} to YAML (base 60): write it in quotes, '{text}'"
    )


def _wrong(node: yaml.Node, what: str) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, what, node.start_mark)
