"""What GET /v1/models answers: one shape that both SDKs read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from schemas.dialects.canonical import InvalidRequest

_LIMIT_MAX = 1_000
"""The most a client may ask for, and what it gets unasked: OpenAI's SDK asks for no second page."""
_OWNER = "millstream"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """What clients are told about one model."""

    id: str
    display_name: str
    created_ms: int
    max_input_tokens: int
    max_tokens: int


def model_object(card: ModelCard) -> dict[str, object]:
    """Return one model: Anthropic's fields and OpenAI's beside each other."""
    created_at = datetime.fromtimestamp(card.created_ms // 1_000, UTC)
    return {
        "type": "model",
        "id": card.id,
        "display_name": card.display_name,
        "created_at": created_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "line": None,
        "max_input_tokens": card.max_input_tokens,
        "max_tokens": card.max_tokens,
        "capabilities": None,
        "deprecated_at": None,
        "retires_at": None,
        "object": "model",
        "created": card.created_ms // 1_000,
        "owned_by": _OWNER,
    }


def model_list(cards: Sequence[ModelCard], query: Mapping[str, str]) -> dict[str, object]:
    """Return one page of models, newest first, by `limit`, `after_id` and `before_id`.

    Raises: InvalidRequest for a bad limit, for both cursors at once, for a cursor without model.
    """
    limit = _limit(query.get("limit"))
    after_id, before_id = query.get("after_id"), query.get("before_id")
    if after_id is not None and before_id is not None:
        raise InvalidRequest("before_id", "give either after_id or before_id")
    ordered = sorted(cards, key=lambda card: (-card.created_ms, card.id))
    if after_id is not None:
        rest = ordered[_place(ordered, after_id, "after_id") + 1 :]
        page = rest[:limit]
    elif before_id is not None:
        rest = ordered[: _place(ordered, before_id, "before_id")]
        page = rest[-limit:]
    else:
        rest, page = ordered, ordered[:limit]
    return {
        "object": "list",
        "data": [model_object(card) for card in page],
        "has_more": len(rest) > len(page),
        "first_id": page[0].id if page else None,
        "last_id": page[-1].id if page else None,
    }


def _limit(value: str | None) -> int:
    if value is None:
        return _LIMIT_MAX
    if not (value.isascii() and value.isdigit() and len(value) <= 4):
        raise InvalidRequest("limit", "Input should be a valid integer")
    limit = int(value)
    if not 1 <= limit <= _LIMIT_MAX:
        raise InvalidRequest("limit", f"must be between 1 and {_LIMIT_MAX}")
    return limit


def _place(ordered: Sequence[ModelCard], model_id: str, field: str) -> int:
    for place, card in enumerate(ordered):
        if card.id == model_id:
            return place
    raise InvalidRequest(field, f"no model '{model_id}'")
