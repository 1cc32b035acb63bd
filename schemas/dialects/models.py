"""What GET /v1/models answers: one shape that both SDKs read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """What clients are told about one model."""

    id: str
    display_name: str
    created_ms: int
    max_input_tokens: int
    max_tokens: int


def model_object(card: ModelCard) -> dict[str, object]:
    """Return one model as both SDKs read it."""
    raise NotImplementedError


def model_list(cards: Sequence[ModelCard], query: Mapping[str, str]) -> dict[str, object]:
    """Return one page of models, newest first, by `limit`, `after_id`, `before_id`; raises InvalidRequest."""
    raise NotImplementedError
