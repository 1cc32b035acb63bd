"""Results of items as lines: Anthropic's results, OpenAI's output file and error file. Pure.

Source: https://docs.anthropic.com/en/docs/build-with-claude/batch-processing;
https://platform.openai.com/docs/guides/batch.
"""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from msgspec import Raw

from schemas.batches import ItemEnded, ItemOutcome
from schemas.ids import RequestId, show_request_id

__all__ = ["Render", "error_line", "output_line", "result_line"]

Render = Callable[[str, ItemEnded], bytes]
"""From a batch's id and a result to its line with its end, or to nothing."""

_UNRUN: Final[Mapping[ItemOutcome, Mapping[str, str]]] = {
    ItemOutcome.EXPIRED: {
        "code": "batch_expired",
        "message": "This request could not be executed before the completion window expired.",
    },
    ItemOutcome.CANCELED: {
        "code": "batch_cancelled",
        "message": "This request was not started before the batch was cancelled.",
    },
}


def result_line(_batch_id: str, item: ItemEnded) -> bytes:
    """Return a line of Anthropic's results."""
    result: dict[str, object] = {"type": item.outcome.value}
    if item.outcome is ItemOutcome.SUCCEEDED:
        result["message"] = Raw(item.body)
    elif item.outcome is ItemOutcome.ERRORED:
        result["error"] = Raw(item.body)
    return _line({"custom_id": item.custom_id, "result": result})


def output_line(batch_id: str, item: ItemEnded) -> bytes:
    """Return a line of OpenAI's output file: of those that succeeded."""
    return _called(batch_id, item) if item.outcome is ItemOutcome.SUCCEEDED else b""


def error_line(batch_id: str, item: ItemEnded) -> bytes:
    """Return a line of OpenAI's error file: of all others."""
    return b"" if item.outcome is ItemOutcome.SUCCEEDED else _called(batch_id, item)


def _called(batch_id: str, item: ItemEnded) -> bytes:
    response = None
    if item.outcome not in _UNRUN:
        response = {
            "status_code": item.status,
            "request_id": show_request_id(RequestId(item.request_id)),
            "body": Raw(item.body),
        }
    return _line(
        {
            "id": f"batch_req_{batch_id.removeprefix('batch_')}_{item.index}",
            "custom_id": item.custom_id,
            "response": response,
            "error": _UNRUN.get(item.outcome),
        }
    )


def _line(value: dict[str, object]) -> bytes:
    return msgspec.json.encode(value) + b"\n"
