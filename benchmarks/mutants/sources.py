"""Mutants of a source file: mutmut's operators, applied to any function, decorated ones too.

mutmut itself leaves decorated functions alone, because it calls mutants through a trampoline beside the function.
Kernels and properties are decorated; here a mutant is a source text, whose code takes the place of a function's code.
"""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators, operator_string

OPERATORS = [(kind, operator) for kind, operator in mutation_operators if operator is not operator_string]
"""All but those of strings: names of fields are read by the next test that runs, and the rest is prose."""

LEFT_ALONE = (
    *(cst.Annotation, cst.Decorator, cst.Param, cst.Import, cst.ImportFrom),
    *(cst.Raise, cst.FormattedString),  # words of messages
)
"""Nodes without mutants: the defaults of parameters and decorators are read when the module is imported."""

COMPILED_ONLY = ("intrinsic", "overload")
"""Decorators of functions that numba calls when it compiles."""


@dataclass(frozen=True)
class Mutant:
    """One change of one file; ``line`` counts from one, ``before`` and ``after`` are the code that differs."""

    path: str
    line: int
    statement: int  # the line on which the statement begins
    operator: str
    before: str
    after: str
    source: str

    @property
    def key(self) -> str:
        """Name that outlives changes elsewhere in the file."""
        return f"{self.path}: {self.before} -> {self.after}"


@dataclass(frozen=True)
class Place:
    """Node of a file that can be changed, and the changed node."""

    line: int
    statement: int
    operator: str
    node: cst.CSTNode
    changed: cst.CSTNode

    def mutant(self, path: str, module: cst.Module) -> Mutant:
        """Source with this change."""
        new = module.deep_replace(self.node, self.changed).code
        before, after = _difference(module.code, new)
        return Mutant(path, self.line, self.statement, self.operator, before, after, new)


def places(source: str) -> tuple[cst.Module, list[Place]]:
    """A file and all that mutants may change in its functions."""
    visitor = _Visitor()
    wrapper = MetadataWrapper(cst.parse_module(source))
    wrapper.visit(visitor)
    return wrapper.module, visitor.found


class _Visitor(cst.CSTVisitor):
    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Place] = []
        self.around: list[cst.CSTNode] = []  # functions and statements that the node is in

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, LEFT_ALONE) or _is_docstring(node) or _compiles(node) or _is_strict(node) or _logs(node):
            return False
        if isinstance(node, cst.BaseSmallStatement | cst.BaseCompoundStatement):
            self.around.append(node)
        if any(isinstance(one, cst.FunctionDef) for one in self.around):
            line, statement = self._line(node), self._line(self.around[-1])
            for kind, operator in OPERATORS:
                if isinstance(node, kind):
                    name = operator.__name__.removeprefix("operator_")
                    changed = [new for new in operator(node) if not _drops_strict(node, new)]
                    self.found += [Place(line, statement, name, node, new) for new in changed]
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        if self.around and self.around[-1] is original_node:
            self.around.pop()

    def _line(self, node: cst.CSTNode) -> int:
        """Line on which a node begins; some have no position, and begin with their statement."""
        position = self.get_metadata(PositionProvider, node, None)
        return position.start.line if position is not None else self._line(self.around[-1])


def _is_strict(node: cst.CSTNode) -> bool:
    """``zip(a, b, strict=True)`` says what holds by construction."""
    return isinstance(node, cst.Arg) and node.keyword is not None and node.keyword.value == "strict"


def _drops_strict(node: cst.CSTNode, new: cst.CSTNode) -> bool:
    """Whether a changed call lacks the argument, or has another value of it."""
    if not (isinstance(node, cst.Call) and isinstance(new, cst.Call)):
        return False
    before, after = ([arg for arg in call.args if _is_strict(arg)] for call in (node, new))
    return [arg.value for arg in before] != [arg.value for arg in after]


def _is_docstring(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Expr) and isinstance(node.value, cst.BaseString)


def _logs(node: cst.CSTNode) -> bool:
    """``logger.info("words of a line, %d", 3)``."""
    called = node.func if isinstance(node, cst.Call) else None
    return isinstance(called, cst.Attribute) and isinstance(called.value, cst.Name) and called.value.value == "logger"


def _compiles(node: cst.CSTNode) -> bool:
    if not isinstance(node, cst.FunctionDef):
        return False
    called = [d.decorator.func if isinstance(d.decorator, cst.Call) else d.decorator for d in node.decorators]
    return any(isinstance(name, cst.Name) and name.value in COMPILED_ONLY for name in called)


def _difference(old: str, new: str) -> tuple[str, ...]:
    """The lines that differ, without the ones that both begin and end with."""
    a, b = old.splitlines(), new.splitlines()
    first = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    last = 0
    while last < min(len(a), len(b)) - first and a[-1 - last] == b[-1 - last]:
        last += 1
    return tuple("\n".join(line.strip() for line in c[first : len(c) - last]) for c in (a, b))


def functions_of(root: Path, paths: set[str]) -> list[FunctionType]:
    """Functions that stem from these files, whatever holds them: classes, properties, caches, other modules."""
    for path in sorted(paths):
        importlib.import_module(path.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    files = {str(root / path) for path in paths}
    gc.unfreeze()  # objects that conftest.py froze are not listed, and their mutants would all be "same code"
    return [f for f in gc.get_objects() if type(f) is FunctionType and f.__code__.co_filename in files]


def swap(functions: list[FunctionType], path: Path, old: str, new: str) -> int:
    """Gives functions the code that they have in another source of their file; returns how many have other code now.

    Raises
    ------
    ValueError
        If a function now takes other variables from around it.
    """
    places = {id_of(code): (name, i) for name, codes in _codes(path, old).items() for i, code in enumerate(codes)}
    changed, codes = 0, _codes(path, new)
    for function in [f for f in functions if f.__code__.co_filename == str(path)]:
        name, i = places.get(id_of(function.__code__), ("", 0))
        if name and codes[name][i] != function.__code__:
            function.__code__ = codes[name][i]
            changed += 1
    return changed


def id_of(code: CodeType) -> tuple[str, int]:
    """Name and first line."""
    return code.co_qualname, code.co_firstlineno


def _codes(path: Path, source: str) -> dict[str, list[CodeType]]:
    """Code of each function by its qualified name: in the order of the file, where several have one name."""
    found: dict[str, list[CodeType]] = {}
    for code in _inner(compile(source, str(path), "exec", dont_inherit=True)):
        found.setdefault(code.co_qualname, []).append(code)
    return found


def _inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _inner(constant)
