"""What a source may do to load or make code which no import statement names, as far as reading it tells.

A list of such ways is never whole, so it is generous: to suspect harmless code costs a run no more than that its noise
does not repeat. Names are followed through imports and assignments, and a module that is handed on as a value, where
anything may be taken from it, is suspect itself.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Final

# Builtins, by whatever means they are reached.
CALLS: Final = frozenset(
    {"exec", "eval", "compile", "__import__", "globals", "locals", "breakpoint"}
    | {"__builtins__", "__loader__", "__spec__"}
)
# Modules, or what is in them, by their full names; all that is below counts as well.
SUSPECT: Final = frozenset(
    # Python's that load or make code, run strings or other programs, or find objects by name.
    {"builtins", "importlib", "imp", "pkgutil", "pydoc", "runpy", "zipimport", "zipapp", "code", "codeop", "marshal"}
    | {"pickle", "_pickle", "shelve", "dbm", "copyreg", "ctypes", "_ctypes", "subprocess", "_posixsubprocess", "pty"}
    | {"multiprocessing", "_multiprocessing", "concurrent.futures.process", "concurrent.futures.ProcessPoolExecutor"}
    | {"concurrent.interpreters", "_interpreters", "_xxsubinterpreters", "_imp", "_frozen_importlib", "site"}
    | {"_frozen_importlib_external", "pyclbr", "modulefinder", "timeit", "trace", "profile", "cProfile", "pdb", "bdb"}
    | {"doctest", "unittest", "gc", "logging.config", "xmlrpc", "operator.attrgetter", "operator.methodcaller"}
    | {f"os.{name}" for name in ("system", "popen", "fork", "forkpty", "startfile", "posix_spawn", "posix_spawnp")}
    | {f"os.{way}{how}" for way in ("exec", "spawn") for how in ("l", "le", "lp", "lpe", "v", "ve", "vp", "vpe")}
    | {f"sys.{name}" for name in ("modules", "meta_path", "path_hooks", "path_importer_cache", "_getframe", "settrace")}
    | {"sys.setprofile", "sys._current_frames", "sys.addaudithook", "sys._getframemodulename", "sys.monitoring"}
    | {"inspect.currentframe", "inspect.stack", "inspect.trace", "inspect.getmodule", "inspect.getmembers"}
    | {f"types.{name}" for name in ("FunctionType", "LambdaType", "CodeType", "ModuleType", "MethodType")}
    | {"typing.get_type_hints", "typing.ForwardRef", "asyncio.create_subprocess_exec", "asyncio.subprocess"}
    | {"asyncio.create_subprocess_shell", "importlib.metadata.entry_points", "importlib.metadata.EntryPoint"}
    | {"importlib.metadata.EntryPoints", "importlib.metadata.distribution", "importlib.metadata.distributions"}
    # Others'.
    | {"cffi", "cloudpickle", "dill", "joblib", "pkg_resources", "six", "future", "Cython", "cython", "pyximport"}
    | {"cppyy", "pybind11", "pandas.read_pickle", "pandas.eval", "numexpr", "onnxruntime", "tensorrt"}
    | {"numpy.load", "numpy.ctypeslib", "numpy.f2py", "numpy.lib.format", "numpy.lib.npyio", "numpy.lib._npyio_impl"}
    | {"torch.load", "torch.serialization", "torch.hub", "torch.package", "torch.jit.load", "torch.jit.CompilationUnit"}
    | {"torch.jit._serialization", "torch.jit.jit_module_from_flatbuffer", "torch.export.load", "torch.multiprocessing"}
    | {"torch.utils.cpp_extension", "torch.utils.model_zoo", "torch.ops.load_library", "torch.classes", "torch._C"}
    | {"torch._ops", "torch._inductor", "torch.distributed.rpc", "torch.cuda._compile_kernel"}
    # Ours that load plugins by name, or keep what was loaded.
    | {f"dpfl_plugin.{room}" for room in ("registry", "loaded", "federation", "runs", "owners", "evidence", "cli")}
)
HARMLESS: Final = frozenset({"importlib.metadata", "importlib.resources"})  # though what they are in is suspect
# Attributes of whatever object: they lead to a module's names, or load what they are given.
ATTRIBUTES: Final = frozenset(
    {"__builtins__", "__globals__", "__subclasses__", "__loader__", "__spec__", "__import__", "__code__", "__closure__"}
    | {"f_globals", "f_builtins", "f_locals", "tb_frame", "gi_frame", "import_module", "exec_module", "load_module"}
    | {"load_library", "resolve_name", "run_path", "run_module", "import_string", "import_from_string", "read_pickle"}
)
# What is harmless when it is told so in the very call.
TOLD: Final = {"torch.load": ("weights_only", True), "numpy.load": ("allow_pickle", False)}


def unseen(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, what) may load or make code that no import names; ``tree`` is that of a module."""
    finder = _Finder(_names(tree))
    finder.visit(tree)
    yield from finder.found


def suspect(name: str) -> bool:
    """Whether the full name of a module, or of what is in one, is suspect."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        whole = ".".join(parts[:end])
        if whole in SUSPECT or whole in HARMLESS:
            return whole in SUSPECT
    return False


def _names(tree: ast.AST) -> dict[str, set[str]]:
    """What names may stand for: full names of what was imported, or assigned from that, anywhere in a source."""
    found: dict[str, set[str]] = {}
    assigned: list[tuple[str, ast.expr]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                found.setdefault(alias.asname or top, set()).add(alias.name if alias.asname else top)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                found.setdefault(alias.asname or alias.name, set()).add(f"{node.module}.{alias.name}")
        elif isinstance(node, ast.Assign):
            assigned += [(target.id, node.value) for target in node.targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and isinstance(node.target, ast.Name) and node.value:
            assigned.append((node.target.id, node.value))
    changed = True
    while changed:
        changed = False
        for name, value in assigned:
            more = _full(value, found) - found.get(name, set())
            if more and len(found.get(name, ())) < 100:  # x = x.y has no end
                found.setdefault(name, set()).update(more)
                changed = True
    return found


def _full(node: ast.expr, names: dict[str, set[str]]) -> set[str]:
    """The full names that an expression of names and attributes may stand for."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts, node = [node.attr, *parts], node.value
    if not isinstance(node, ast.Name):
        return set()
    return {_canonical(".".join([base, *parts])) for base in names.get(node.id, ())}


def _canonical(name: str) -> str:
    """A name with the modules in it by their own names: os.sys.modules is sys.modules."""
    parts = name.split(".")
    for end in range(len(parts) - 1, 1, -1):
        module = _module(".".join(parts[:end]))
        if module is not None:
            return ".".join([module.__name__, *parts[end:]])
    return name


def _module(name: str) -> ModuleType | None:
    """The module that a full name stands for, if it was loaded; nothing is asked of strangers' objects."""
    first, *rest = name.split(".")
    found: object = sys.modules.get(first)
    for part in rest:
        found = vars(found).get(part) if isinstance(found, ModuleType) else None
    return found if isinstance(found, ModuleType) else None


class _Finder(ast.NodeVisitor):
    def __init__(self, names: dict[str, set[str]]) -> None:
        self.found: list[tuple[int, str]] = []
        self._names = names

    def visit_Import(self, node: ast.Import) -> None:
        self._say(node, *(alias.name for alias in node.names if suspect(alias.name)))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.level or not node.module:
            return
        whole = [f"{node.module}.{alias.name}" for alias in node.names if alias.name != "*"]
        if len(whole) < len(node.names) and any(f"{name}.".startswith(f"{node.module}.") for name in SUSPECT):
            self._say(node, f"{node.module}.*")
        self._say(node, *(name for name in whole if suspect(_canonical(name))))

    def visit_Assign(self, node: ast.Assign) -> None:
        if not all(isinstance(target, ast.Name) for target in node.targets):
            self.generic_visit(node)
        else:
            self._value(node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.visit(node.annotation)
        if node.value is not None and isinstance(node.target, ast.Name):
            self._value(node.value)
        elif node.value is not None:
            self.visit(node.value)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)

    def _value(self, node: ast.expr) -> None:
        """What is assigned to a name: a module may be, since the name is followed."""
        self._look(node, may_be_module=True)

    def visit_Call(self, node: ast.Call) -> None:
        arguments = [*node.args, *(word.value for word in node.keywords)]
        told = {word.arg: getattr(word.value, "value", None) for word in node.keywords}
        full = _full(node.func, self._names)
        if not (full and all(name in TOLD and told.get(TOLD[name][0]) is TOLD[name][1] for name in full)):
            self._look(node.func)
        if isinstance(node.func, ast.Name) and node.func.id == "vars" and not arguments:
            self._say(node, "vars()")
        if isinstance(node.func, ast.Name) and node.func.id == "hasattr" and arguments:
            self._look(arguments.pop(0), may_be_module=True)  # gives no more than yes or no
        if isinstance(node.func, ast.Name) and node.func.id == "getattr" and len(arguments) > 1:
            named = arguments[1]
            if isinstance(named, ast.Constant) and isinstance(named.value, str) and named.value.isidentifier():
                # As if it were written with a dot.
                self._look(ast.copy_location(ast.Attribute(arguments[0], named.value, ast.Load()), node))
                arguments = arguments[2:]
        for argument in arguments:
            self.visit(argument)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._look(node)

    def visit_Name(self, node: ast.Name) -> None:
        self._look(node)

    def _look(self, node: ast.expr, *, may_be_module: bool = False) -> None:
        base: ast.expr = node
        while isinstance(base, ast.Attribute):
            if base.attr in ATTRIBUTES:
                self._say(node, base.attr)
            base = base.value
        if not isinstance(base, ast.Name):
            self.visit(base)
            return
        if base.id in CALLS:
            self._say(node, base.id)
        for name in sorted(_full(node, self._names)):
            if suspect(name) or (name.endswith(".__dict__") and _module(name.removesuffix(".__dict__")) is not None):
                self._say(node, name)
            elif not may_be_module and isinstance(getattr(node, "ctx", None), ast.Load) and _module(name) is not None:
                self._say(node, f"module {name} as a value")

    def _say(self, node: ast.AST, *names: str) -> None:
        self.found += [(getattr(node, "lineno", 0), name) for name in names]
