"""Schemas of batches and files."""

from typing import Final

from gateway.openapi.forms import (
    FLAG,
    OPEN_OBJECT,
    TEXT,
    Schema,
    array,
    enum,
    integer,
    obj,
    optional,
    ref,
    text,
)
from schemas import limits

__all__ = ["BATCH_SCHEMAS"]

_TIME: Final[Schema] = {"type": "string", "format": "date-time"}
_COUNTS: Final = ("processing", "succeeded", "errored", "canceled", "expired")

BATCH_SCHEMAS: Final[dict[str, Schema]] = {
    "MessageBatchRequest": obj(
        {
            "requests": array(
                obj(
                    {
                        "custom_id": text(64, r"^[a-zA-Z0-9_-]{1,64}$", 1),
                        "params": OPEN_OBJECT,
                    },
                    "custom_id params",
                    closed=True,
                ),
                1,
                limits.BATCH_ITEMS_MAX,
            )
        },
        "requests",
        closed=True,
    ),
    "MessageBatch": obj(
        {
            "id": TEXT,
            "type": enum("message_batch"),
            "processing_status": enum("in_progress", "canceling", "ended"),
            "request_counts": obj({name: integer(0) for name in _COUNTS}, " ".join(_COUNTS)),
            "created_at": _TIME,
            "expires_at": _TIME,
            "ended_at": optional(_TIME),
            "cancel_initiated_at": optional(_TIME),
            "archived_at": optional(_TIME),
            "results_url": optional(TEXT),
        },
        "id type processing_status request_counts created_at expires_at results_url",
    ),
    "MessageBatchList": obj(
        {
            "data": array(ref("MessageBatch")),
            "has_more": FLAG,
            "first_id": optional(TEXT),
            "last_id": optional(TEXT),
        },
        "data has_more first_id last_id",
    ),
    "MessageBatchDeleted": obj({"id": TEXT, "type": enum("message_batch_deleted")}, "id type"),
}
