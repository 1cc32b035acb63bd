"""Rewriting a client's JSON schema into one that the grammar engine enforces to the letter.

What comes out holds only keywords that are enforced, and every value that follows it follows the
schema as it was given: where both cannot be had, the request is refused, naming keyword and path.
Objects whose schema does not speak of additional properties get none.

References are gathered into `$defs`; annotations and keywords that JSON schema does not know are
dropped. The engine's own extension (`x-guidance`) is one of the latter: clients cannot reach it.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

from schemas import limits
from schemas.dialects.canonical import InvalidRequest
from schemas.json_schema.bounds import (
    IN_PLACE,
    Node,
    Rewritten,
    all_evaluated,
    name_pattern,
    settle_bounds,
    take_bound,
)
from schemas.json_schema.exclusion import exclusive
from schemas.json_schema.patterns import engine_pattern
from schemas.json_schema.references import Document, is_composed
from schemas.json_schema.values import (
    as_constant,
    as_list,
    as_object,
    as_text,
    join,
)

__all__ = ["ANY_OBJECT", "enforceable"]

ANY_OBJECT: Final[Mapping[str, object]] = {"type": "object"}
"""The schema of any JSON object."""

_TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_ROOT, _DEFS = "#", "#/$defs/"
_REFUSED: Final[Mapping[str, Callable[[Mapping[str, object]], bool]]] = {
    # Keyword -> whether it asks for nothing in this schema.
    "not": lambda node: node["not"] is False,
    "if": lambda node: "then" not in node and "else" not in node,
    "dependentSchemas": lambda node: node["dependentSchemas"] == {},
    "dependentRequired": lambda node: node["dependentRequired"] == {},
    "dependencies": lambda node: node["dependencies"] == {},
    "contains": lambda node: node.get("minContains") == 0 and "maxContains" not in node,
    "uniqueItems": lambda node: node["uniqueItems"] is False or node.get("maxItems") in (0, 1),
    "unevaluatedItems": lambda node: all_evaluated(node, "unevaluatedItems"),
    "unevaluatedProperties": lambda node: all_evaluated(node, "unevaluatedProperties"),
    "$dynamicRef": lambda node: False,
    "$recursiveRef": lambda node: False,
}


def enforceable(schema: object, path: str) -> Rewritten:
    """Return the schema as it is enforced. Raises InvalidRequest naming keyword and path."""
    if isinstance(schema, bool):
        return schema
    return _Rewriting(as_object(schema, path), path).whole()


class _Rewriting:
    """One walk over a schema and what it refers to."""

    def __init__(self, root: Mapping[str, object], path: str) -> None:
        self._document = Document(root)
        self._open = is_composed(root)
        """True where objects may be put together from parts: then none is closed unasked."""
        self._root, self._path = root, path
        self._names: dict[str, str] = {}
        """References to definitions of ours by the client's."""
        self._waiting: list[tuple[str, object, str]] = []
        """Definitions to rewrite: reference, schema, path."""
        self._definitions: dict[str, Rewritten] = {}
        """By reference."""
        self._in_place: dict[str, set[str]] = {}
        """Definitions by those that are, or may be, them: such a circle would have no end."""
        self._current = _ROOT
        self._alternatives: list[tuple[Node, str]] = []
        self._properties = self._constants = 0

    def whole(self) -> Rewritten:
        """Rewrite root and definitions."""
        root = self._schema(self._root, self._path, 0, in_place=True)
        while self._waiting:
            name, schema, path = self._waiting.pop()
            self._current = name
            self._definitions[name] = self._schema(schema, path, 0, in_place=True)
        self._refuse_circles()
        for node, path in self._alternatives:
            self._settle(node, path)
        if isinstance(root, dict) and self._definitions:
            definitions = {name[len(_DEFS) :]: made for name, made in self._definitions.items()}
            return root | {"$defs": definitions}
        return root

    def _schema(self, schema: object, path: str, depth: int, *, in_place: bool) -> Rewritten:
        """Rewrite one schema; `in_place` where its value is the current definition's own."""
        if isinstance(schema, bool):
            return schema
        node = as_object(schema, path)
        if depth > limits.JSON_SCHEMA_DEPTH_MAX:
            most = limits.JSON_SCHEMA_DEPTH_MAX
            raise InvalidRequest(path, f"schemas nest at most {most} deep")
        if depth and isinstance(node.get("$id"), str):
            raise InvalidRequest(join(path, "$id"), "schemas inside schemas are not supported")
        for keyword, asks_nothing in _REFUSED.items():
            if keyword in node and not asks_nothing(node):
                raise unsupported(path, keyword)
        made: Node = {}
        for keyword, value in node.items():
            self._keyword(keyword, value, node, made, join(path, keyword), depth + 1, in_place)
        self._close(node, made)
        settle_bounds(made, path)
        if "oneOf" in made:
            self._alternatives.append((made, join(path, "oneOf")))
        return _unwrapped(made)

    def _keyword(
        self,
        keyword: str,
        value: object,
        node: Mapping[str, object],
        made: Node,
        path: str,
        depth: int,
        in_place: bool,
    ) -> None:
        match keyword:
            case "type":
                made[keyword] = _types(value, path)
            case "const":
                made[keyword] = as_constant(value, path)
            case "enum":
                made[keyword] = self._enum(value, path)
            case "$ref":
                made[keyword] = self._reference(value, path, in_place)
            case "allOf" | "anyOf" | "oneOf":
                made[keyword] = [
                    self._schema(part, join(path, at), depth, in_place=in_place)
                    for at, part in enumerate(as_list(value, path))
                ]
            case "properties":
                made[keyword] = self._named(value, path, depth)
            case "patternProperties":
                named = self._named(value, path, depth)
                made[keyword] = {engine_pattern(name, path): part for name, part in named.items()}
            case "additionalProperties" | "additionalItems":
                made[keyword] = self._schema(value, path, depth, in_place=False)
            case "items":
                made[keyword] = self._items(value, path, depth)
            case "prefixItems":
                made[keyword] = self._each(value, path, depth)
            case "propertyNames":
                self._property_names(value, node, made, path, depth)
            case "required":
                made[keyword] = _names(value, path)
            case _:
                take_bound(keyword, value, node, made, path)

    def _enum(self, value: object, path: str) -> list[object]:
        values = as_list(value, path)
        self._constants += len(values)
        if self._constants > limits.JSON_SCHEMA_CONSTANTS_MAX:
            most = limits.JSON_SCHEMA_CONSTANTS_MAX
            raise InvalidRequest(path, f"a schema has at most {most} enum values")
        return [as_constant(item, join(path, at)) for at, item in enumerate(values)]

    def _reference(self, value: object, path: str, in_place: bool) -> str:
        """Return the reference to a definition of ours."""
        reference = as_text(value, path)
        target = self._document.find(reference, path)
        if target is self._root:
            name = _ROOT
        elif reference in self._names:
            name = self._names[reference]
        else:
            name = self._names[reference] = self._name(reference)
            place = reference.partition("#")[2].strip("/").replace("/", ".")
            self._waiting.append((name, target, join(self._path, place)))
        if in_place:
            self._in_place.setdefault(self._current, set()).add(name)
        return name

    def _name(self, reference: str) -> str:
        """Return a fresh name for a definition, the client's own where that is plain."""
        name = reference.rpartition("/")[2]
        taken = self._names.values()
        if not _PLAIN_NAME.fullmatch(name) or f"{_DEFS}{name}" in taken:
            name = f"definition-{len(self._names)}"
        return f"{_DEFS}{name}"

    def _named(self, value: object, path: str, depth: int) -> Node:
        schemas = as_object(value, path)
        self._properties += len(schemas)
        if self._properties > limits.JSON_SCHEMA_PROPERTIES_MAX:
            most = limits.JSON_SCHEMA_PROPERTIES_MAX
            raise InvalidRequest(path, f"a schema has at most {most} properties")
        return {
            as_text(name, path): self._schema(part, join(path, name), depth, in_place=False)
            for name, part in schemas.items()
        }

    def _each(self, value: object, path: str, depth: int) -> list[Rewritten]:
        return [
            self._schema(part, join(path, at), depth, in_place=False)
            for at, part in enumerate(as_list(value, path))
        ]

    def _items(self, value: object, path: str, depth: int) -> object:
        if isinstance(value, list):  # drafts before 2020-12
            return self._each(value, path, depth)
        return self._schema(value, path, depth, in_place=False)

    def _property_names(
        self, value: object, node: Mapping[str, object], made: Node, path: str, depth: int
    ) -> None:
        """Turn a rule about names into one pattern that all properties have to match."""
        names = self._schema(value, path, depth, in_place=False)
        pattern = name_pattern(names)
        if pattern == "":
            return
        if pattern is None or "properties" in node or "patternProperties" in node:
            raise unsupported(path.rpartition(".")[0], "propertyNames")
        rest = self._schema(node.get("additionalProperties", True), path, depth, in_place=False)
        made["patternProperties"] = {pattern: rest}

    def _close(self, node: Mapping[str, object], made: Node) -> None:
        """Say what an object may hold beyond its named properties, where the schema did not."""
        if "propertyNames" in node and "patternProperties" in made:
            made["additionalProperties"] = False
        if node.get("unevaluatedProperties") is False:
            made.setdefault("additionalProperties", False)
        if node.get("unevaluatedItems") is False:
            made.setdefault("items", False)
        if "properties" not in made or "additionalProperties" in made or self._open:
            return
        if any(keyword in node for keyword in ("patternProperties", *IN_PLACE)):
            return
        properties = made["properties"]
        assert isinstance(properties, dict), "rewritten above"
        required = made.get("required", [])
        assert isinstance(required, list), "rewritten above"
        made["properties"] = properties | {
            name: True for name in required if name not in properties
        }
        made["additionalProperties"] = False

    def _settle(self, node: Node, path: str) -> None:
        """Make a `oneOf` whose alternatives exclude each other an `anyOf`, in its place."""
        alternatives = node["oneOf"]
        assert isinstance(alternatives, list), "rewritten above"
        if not exclusive(alternatives, self._definitions):
            raise InvalidRequest(
                path,
                "alternatives of 'oneOf' have to exclude each other by type, by constant values or "
                "by a required property; use 'anyOf'",
            )
        before = dict(node)
        node.clear()
        if "anyOf" in before:  # two sets of alternatives: both count
            before["allOf"] = [*_list(before.get("allOf")), {"anyOf": before.pop("oneOf")}]
        node.update({("anyOf" if key == "oneOf" else key): item for key, item in before.items()})

    def _refuse_circles(self) -> None:
        """Refuse definitions that are themselves, with nothing in between."""
        done: set[str] = set()
        for start in self._in_place:
            seen, waiting = {start}, list(self._in_place[start])
            while waiting and start not in done:
                name = waiting.pop()
                if name == start:
                    raise InvalidRequest(
                        self._path, "'$ref' leads back to itself with nothing in between"
                    )
                if name not in seen:
                    seen.add(name)
                    waiting.extend(self._in_place.get(name, ()))
            done.add(start)


def unsupported(path: str, keyword: str) -> InvalidRequest:
    """Return the error of a keyword that cannot be enforced."""
    return InvalidRequest(
        join(path, keyword), f"the JSON schema keyword '{keyword}' is not supported"
    )


def _types(value: object, path: str) -> object:
    names = [value] if isinstance(value, str) else as_list(value, path)
    for name in names:
        if name not in _TYPES:
            raise InvalidRequest(path, f"expected one of {', '.join(_TYPES)}, or a list of them")
    return value if isinstance(value, str) else list(dict.fromkeys(names))


def _names(value: object, path: str) -> list[str]:
    if value == []:
        return []
    names = [as_text(name, join(path, at)) for at, name in enumerate(as_list(value, path))]
    return list(dict.fromkeys(names))


def _unwrapped(made: Node) -> Rewritten:
    """Return the part of an `allOf` that stands alone."""
    parts = made.get("allOf")
    if len(made) == 1 and isinstance(parts, list) and len(parts) == 1:
        part: Rewritten = parts[0]
        return part
    return made


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
