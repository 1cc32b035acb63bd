"""JSON schemas as clients send them: what can be enforced on a reply, and in which form. Pure."""

from schemas.json_schema.rewriting import ANY_OBJECT, enforceable
from schemas.json_schema.shape import check_shape

__all__ = ["ANY_OBJECT", "check_shape", "enforceable"]
