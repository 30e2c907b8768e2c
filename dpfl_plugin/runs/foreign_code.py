"""The code that decides what a run releases, as far as it is not this package's own.

From the plugins of a run to all that they import: what a module's source names in its imports, also inside functions,
where the objects come from that it holds, and which users' modules were loaded on its behalf. A user's module is known
by the digest of the source that was loaded, an installed distribution by its version and the digest of its list of
files. What cannot be known is in doubt, and said: bytecode, extensions, notebooks, and source that may load or make
code which no import names (`runs.hidden_imports`).

Environment variables, files and clocks that code reads are not seen here.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import inspect
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from dpfl_plugin import given, loaded, registry
from dpfl_plugin.config.blocks import Block
from dpfl_plugin.config.schema import Config
from dpfl_plugin.loaded import InDoubtError, Source
from dpfl_plugin.runs.hidden_imports import unseen

OURS: Final = "dpfl_plugin"  # known by a digest of its own
_PARSING: Final = threading.Lock()  # CPython 3.11 counts depth for all threads together, and fails where two parse
TORCH: Final = "torch"  # whoever names one of its losses or functions has not written it: its distribution counts


@dataclass(frozen=True, slots=True)
class Code:
    """Users' and strangers' code.

    Attributes:
        files: {module: sha256 of its source}; packages: {distribution: version and digest}.
        doubts: why it is not all of it, in words; empty if it is.
    """

    files: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    doubts: tuple[str, ...] = ()

    @property
    def facts(self) -> dict[str, Any]:
        """As plain values."""
        return {"files": dict(self.files), "packages": dict(self.packages)}

    def changes(self, before: Mapping[str, Any]) -> list[str]:
        """What differs from the ``facts`` of earlier code, in words."""
        said = []
        for what, now in (("module", self.files), ("package", self.packages)):
            then: Mapping[str, str] = before[f"{'file' if what == 'module' else what}s"]
            for name in sorted({*then, *now}):
                if then.get(name) != now.get(name):
                    how = "is new" if name not in then else "is gone" if name not in now else "changed"
                    said.append(f"{what} {name}{_where(name) if what == 'module' else ''} {how}")
        return said


def _where(name: str) -> str:
    path = getattr(sys.modules.get(name), "__file__", None)
    return "" if path is None else f" ({path})"


def named_plugins(config: Config) -> tuple[list[object], list[object]]:
    """(what makes a release, what makes the records) of a configuration's plugins; loaded, not made.

    With each the name of the module where it was found: what is found there may be of another module, or of this
    package, and changed there. Records that a program gave are left out: no code of theirs counts, and they need not
    be here.

    Raises:
        PluginError: one of them cannot be loaded.
    """
    privacy, data = config.privacy, config.data
    blocks: list[tuple[str, Block]] = [
        ("algorithms", config.algorithm),
        ("models", config.model),
        ("mechanisms", privacy.mechanism),
        ("clippings", privacy.clip),
        ("schedules", privacy.schedule),
        ("accountants", privacy.accountant),
    ]
    found = [one for group, block in blocks for one in _named(group, block)]
    if ":" in config.loss:
        found += _at(config.loss, "loss")
    if config.engine != "auto":
        found += _registered("engines", config.engine)
    made = [] if given.is_given(data.dataset.module, "data") else _named("datasets", data.dataset)
    made += _named("partitioners", data.partition)
    for step in data.preprocess:
        if isinstance(factory := step.options.get("factory"), str):  # of a backbone
            made += _at(factory, "data.preprocess")
    return found, made


def _named(group: str, block: Block) -> list[object]:
    if block.name:
        return _registered(group, block.name)
    return _at(str(block.module), group)


def _at(path: str, what: str) -> list[object]:
    """The object at ``package.module:name``; for one that a Python program gave, what it is made of, too."""
    found = registry.load_object(path, what)
    return [found, registry.module_of(path), *getattr(found, given.MADE_OF, ())]


def _registered(group: str, name: str) -> list[object]:
    return [registry.load(group, name), registry.module_of(registry.path_of(group, name))]


def trace(plugins: Iterable[object], more: Iterable[object] = (), *, asked: bool = True) -> Code:
    """The code of ``plugins`` and of ``more``, and what they import.

    Args:
        plugins: functions, classes, instances of classes, or names of modules; of those that are installed, too, the
            source counts.
        more: the same; of installed ones the distribution counts.
        asked: whether users' modules count that were seen to be loaded on behalf of these, by whatever means.
    """
    tracer = _Tracer(asked)
    for objects, own in ((plugins, True), (more, False)):
        for one in objects:
            if isinstance(one, str):
                tracer.add(one, own=own)
            else:
                tracer.add_object(one, own=own)
    tracer.run()
    order = dict(sorted(tracer.files.items())), dict(sorted(tracer.packages.items()))
    return Code(*order, tuple(sorted(tracer.doubts)))


class _Tracer:
    def __init__(self, asked: bool) -> None:
        self._asked = asked
        self.files: dict[str, str] = {}
        self.packages: dict[str, str] = {}
        self.doubts: set[str] = set()
        self._seen: set[str] = set()
        self._waiting: list[tuple[str, bool]] = []  # module, whether it is a plugin's own
        self._folders: dict[str, list[str]] = {}  # of packages that nothing has loaded so far

    def add_object(self, plugin: object, *, own: bool = False) -> None:
        while isinstance(plugin, functools.partial):
            plugin = plugin.func
        kind = plugin if isinstance(plugin, type) else type(plugin)
        top = str(kind.__module__).partition(".")[0]
        for made in [plugin] if inspect.isroutine(plugin) else kind.__mro__:
            name = getattr(made, "__module__", None)
            if not isinstance(name, str) or name not in sys.modules:
                self.doubts.add(f"{getattr(made, '__qualname__', made)!s} is of no module that could be looked at")
            else:
                # Classes of other packages that it is made of count as what it imports of them.
                self.add(name, own=own and (inspect.isroutine(plugin) or name.partition(".")[0] == top))

    def add(self, name: str, *, own: bool = False) -> None:
        parts = name.split(".")
        for end in range(1, len(parts) + 1):  # packages run code of their own
            module = ".".join(parts[:end])
            if module not in self._seen and parts[0] != OURS:
                self._seen.add(module)
                self._waiting.append((module, own and parts[0] != TORCH))

    def run(self) -> None:
        while self._waiting:
            name, own = self._waiting.pop(0)  # packages before what is in them
            try:
                self._look(name, own)
            except InDoubtError as doubt:
                self.doubts.add(str(doubt))

    def _look(self, name: str, own: bool) -> None:
        module = sys.modules.get(name)
        if module is None:
            self._look_ahead(name)
            return
        path = getattr(module, "__file__", None)
        if path is None and (hasattr(module, "__path__") or name in sys.builtin_module_names or _is_frozen(module)):
            return  # a namespace package, or Python's own
        origin = "user" if path is None else loaded.origin_of(path)
        if self._counts(name, origin, own):
            self._follow(name, loaded.source_of(module) if origin == "user" else _file(str(path)), module)

    def _look_ahead(self, name: str) -> None:
        """At a module that an import names and nothing has loaded so far; many of these are names in modules."""
        parent = name.rpartition(".")[0]
        folders = getattr(sys.modules.get(parent), "__path__", self._folders.get(parent))
        if parent and folders is None:
            return
        try:
            spec = PathFinder.find_spec(name, folders)
        except (ImportError, ValueError):
            return
        if spec is None:
            return
        if spec.submodule_search_locations is not None:
            self._folders[name] = list(spec.submodule_search_locations)
        if spec.origin is not None and self._counts(name, loaded.origin_of(spec.origin), False):
            self._follow(name, _file(spec.origin), None)

    def _counts(self, name: str, origin: loaded.Origin, own: bool) -> bool:
        """Whether the source of a module counts; else that of its distribution is noted."""
        package = _distribution(name) if origin == "installed" else None
        if package is not None:
            self.packages[package[0]] = package[1]
        return origin == "user" or (origin == "installed" and (own or package is None))

    def _follow(self, name: str, source: Source, module: ModuleType | None) -> None:
        self.files[name] = source.sha256
        try:
            with _PARSING:
                tree = ast.parse(source.data)
        except (SyntaxError, ValueError) as error:
            raise InDoubtError(f"{source.path} cannot be read as Python: {error}") from error
        is_package = Path(source.path).stem == "__init__"
        for imported in _imports(tree, name if is_package else name.rpartition(".")[0]):
            self.add(imported)
        if self._asked:
            for imported in loaded.asked_for_by(name):
                self.add(imported)
        for line, what in unseen(tree):
            self.doubts.add(f"{source.path}, line {line}, uses {what}, and what that loads is not known")
        for value in list(vars(module).values()) if module is not None else ():
            of = value.__name__ if isinstance(value, ModuleType) else _module_of(value)
            if isinstance(of, str) and of in sys.modules:
                self.add(of)


def _module_of(value: object) -> object:
    try:
        return getattr(value, "__module__", None)
    except Exception:  # a stranger's object may do anything when it is asked
        return None


def _imports(tree: ast.AST, package: str) -> Iterator[str]:
    """The modules that a source names in imports, wherever these are; some are names in modules, and none at all."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".") if package else []
            base = parents[: len(parents) - node.level + 1] if node.level else []
            whole = ".".join([*base, *([node.module] if node.module else [])])
            if whole:
                yield whole
                yield from (f"{whole}.{alias.name}" for alias in node.names if alias.name != "*")


def _file(path: str) -> Source:
    if not path.endswith(".py"):
        raise InDoubtError(f"{path} has no Python source")
    try:
        return Source(path, Path(path).read_bytes())
    except OSError as error:
        raise InDoubtError(f"{path} cannot be read: {error.strerror}") from error


def _is_frozen(module: ModuleType) -> bool:
    return getattr(getattr(module, "__spec__", None), "origin", None) in ("built-in", "frozen")


@functools.cache
def _distribution(module: str) -> tuple[str, str] | None:
    """(name, version and digest of the list of files) of the distribution that has a module; None if none has."""
    top = module.partition(".")[0]
    found = _named_alike(top) or next(iter(_by_module().get(top, ())), None)
    if found is None:
        return None
    dist = metadata.distribution(found)
    return dist.name, _facts_of(dist)


def _facts_of(dist: metadata.Distribution) -> str:
    record = hashlib.sha256((dist.read_text("RECORD") or "").encode()).hexdigest()[:16]
    return f"{dist.version} {record}"


def installed(packages: Iterable[str]) -> dict[str, str]:
    """What `Code.packages` says of these distributions, as far as they are installed."""
    found = {}
    for name in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = _facts_of(metadata.distribution(name))
    return found


def _named_alike(top: str) -> str | None:
    """A distribution with the name of its module: looking through all of them takes half a second."""
    try:
        listed = metadata.distribution(top).read_text("RECORD") or ""
    except metadata.PackageNotFoundError:
        return None
    return top if f"\n{top}/__init__.py," in f"\n{listed}" else None


@functools.cache
def _by_module() -> Mapping[str, list[str]]:
    return metadata.packages_distributions()


def code_of(config: Config, more: Iterable[object] = ()) -> Code:
    """`trace` of all that a configuration names, and of ``more``.

    What makes the records need not be known, since they themselves are: the files that it names count, and no doubts
    about them. What it loads by other means does not: not all ranks load records.

    Raises:
        PluginError: something cannot be loaded.
    """
    releases, records = named_plugins(config)
    made, data = trace(releases, more), trace(records, asked=False)
    return Code({**data.files, **made.files}, {**data.packages, **made.packages}, made.doubts)
