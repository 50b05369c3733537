"""YAML as job files use it: numbers such as ``1e-6``, no repeated names, and limits on size.

A few lines of YAML can expand beyond any memory, by aliases of aliases, and nested lists can be deeper than Python's
stack.  Size and depth are checked before anything is built.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import yaml
from yaml.constructor import ConstructorError

from bnp_dask.errors import SettingError
from bnp_dask.inputs.lines import one_line
from bnp_dask.inputs.settings import shown


@dataclass(frozen=True)
class Limits:
    """Limits of a YAML text, with every alias expanded.

    Parameters
    ----------
    characters
        Characters of the text, and of all its values and names.
    nodes
        Number of values and names.
    depth
        Levels of nested lists and mappings.
    digits
        Digits of a whole number.
    """

    characters: int = 1_000_000
    nodes: int = 20_000
    depth: int = 32
    digits: int = 100

    def times(self, factor: int) -> Limits:
        """These limits with characters and nodes multiplied by ``factor``."""
        return Limits(factor * self.characters, factor * self.nodes, self.depth, self.digits)


LIMITS = Limits()
"""Limits of job files; PyYAML takes about two seconds for a text of this size."""


def read_yaml(text: str, limits: Limits = LIMITS) -> Any:
    """Plain lists, mappings, texts and numbers from YAML.

    Raises
    ------
    SettingError
        The text is not YAML, holds anything but plain values, or exceeds the limits.
    """
    if len(text) > limits.characters:
        raise SettingError(f"more than {limits.characters:,} characters; put arrays into .npy files")
    try:
        loader = _Loader(text, limits)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _require_size(node, limits)
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = "" if mark is None else f" (line {mark.line + 1}, column {mark.column + 1})"
        raise SettingError(f"{one_line(error.problem or error.context)}{where}") from error
    except yaml.YAMLError as error:
        raise SettingError(one_line(error)) from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, SettingError):
            raise
        # a value that does not fit its tag, such as !!int with a word
        raise SettingError(f"a value does not fit its tag ({one_line(error)})") from error


def _require_size(root: yaml.Node, limits: Limits) -> None:
    """Refuse a document that exceeds the limits with every alias expanded; an alias that contains itself never ends."""
    sizes: dict[int, tuple[int, int] | None] = {}

    def size(node: yaml.Node) -> tuple[int, int]:
        """Nodes and characters of a node; each node is visited once, and none is deeper than the limit."""
        if isinstance(node, yaml.ScalarNode):
            return 1, len(node.value)
        if id(node) in sizes:
            known = sizes[id(node)]
            if known is None:
                raise SettingError("an alias stands for something that it is a part of")
            return known
        sizes[id(node)] = None
        nodes, characters = 1, 0
        for entry in node.value:
            for child in entry if isinstance(node, yaml.MappingNode) else (entry,):
                more = size(child)
                nodes, characters = nodes + more[0], characters + more[1]
        if nodes > limits.nodes or characters > limits.characters:
            raise SettingError(
                f"more than {limits.nodes:,} values and names, or {limits.characters:,} characters in them, with every "
                "alias out in full; put arrays into .npy files"
            )
        sizes[id(node)] = nodes, characters
        return nodes, characters

    size(root)


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader that also reads ``1e-6`` as a number and refuses lists as names and repeated names."""

    def __init__(self, text: str, limits: Limits) -> None:
        super().__init__(text)
        self._limits, self._depth, self._nodes = limits, 0, 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose a node as PyYAML does, and count it."""
        self._nodes += 1
        self._depth += 1
        if self._depth > self._limits.depth or self._nodes > self._limits.nodes:
            depth, nodes = self._limits.depth, self._limits.nodes
            what = (
                f"lists or settings lie more than {depth} levels deep in one another"
                if self._depth > depth
                else f"more than {nodes:,} values and names; put arrays into .npy files"
            )
            raise yaml.composer.ComposerError(None, None, what, self.peek_event().start_mark)
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str | int | float | None):
                raise ConstructorError(None, None, f"{shown(key)} is no name", key_node.start_mark)
            if key in seen:
                raise ConstructorError(None, None, f"{shown(key)} is given twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)

    def construct_number(self, node: yaml.ScalarNode) -> int:
        """A whole number that is not absurdly long."""
        if len(node.value) <= 4 * self._limits.digits:  # a number has more binary digits than decimal ones
            value = super().construct_yaml_int(node)
            if abs(value) < 10**self._limits.digits:
                return value
        raise ConstructorError(None, None, f"a whole number of more than {self._limits.digits} digits", node.start_mark)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_number)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)
# a directory may be called 2026-01-31
_Loader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in found if tag != "tag:yaml.org,2002:timestamp"]
    for first, found in _Loader.yaml_implicit_resolvers.items()
}
