"""References inside one JSON schema: JSON pointers, anchors and the document's own id. Pure."""

from collections.abc import Iterator, Mapping
from urllib.parse import unquote

from schemas.dialects.canonical import InvalidRequest

__all__ = ["Document", "is_composed"]

_OBJECT_KEYWORDS = (
    "properties",
    "patternProperties",
    "additionalProperties",
    "unevaluatedProperties",
    "required",
    "minProperties",
    "maxProperties",
    "propertyNames",
)
_MIXERS = ("$ref", "allOf", "anyOf", "oneOf")


class Document:
    """A whole schema, in which references are looked up."""

    def __init__(self, root: Mapping[str, object]) -> None:
        self._root = root
        self._id = root.get("$id") if isinstance(root.get("$id"), str) else None
        self._anchors: dict[str, object] | None = None

    def find(self, reference: str, path: str) -> object:
        """Return what a reference points to. Raises InvalidRequest where it is not in here."""
        document, _, fragment = reference.partition("#")
        if document and document != str(self._id).partition("#")[0]:
            raise InvalidRequest(path, "references to other documents are not supported")
        fragment = unquote(fragment)
        if not fragment:
            return self._root
        found = self._pointed(fragment) if fragment[0] == "/" else self._anchored(fragment)
        if not isinstance(found, dict | bool):
            raise InvalidRequest(path, "the reference points to no schema")
        return found

    def _pointed(self, pointer: str) -> object:
        found: object = self._root
        for step in pointer[1:].split("/"):
            key = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict):
                found = found.get(key)
            elif isinstance(found, list) and key.isascii() and key.isdigit() and len(key) < 7:
                found = found[int(key)] if int(key) < len(found) else None
            else:
                return None
        return found

    def _anchored(self, name: str) -> object:
        if self._anchors is None:
            self._anchors = {}
            for node in _objects(self._root):
                anchor = node.get("$anchor")
                if isinstance(anchor, str):
                    self._anchors.setdefault(anchor, node)
        return self._anchors.get(name)


def is_composed(root: Mapping[str, object]) -> bool:
    """Tell whether objects of a schema may be put together from several parts.

    Then no part alone says which properties an object has.
    """
    for node in _objects(root):
        parts = node.get("allOf")
        if isinstance(parts, list) and len(parts) > 1:
            return True
        if any(key in node for key in _MIXERS) and any(key in node for key in _OBJECT_KEYWORDS):
            return True
    return False


def _objects(root: object) -> Iterator[Mapping[str, object]]:
    """Yield every JSON object of a document, schema or not."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(node)
