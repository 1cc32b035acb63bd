"""Schemas of batches and files."""

from typing import Final

from gateway.openapi.forms import (
    FLAG,
    NULL,
    OPEN_OBJECT,
    TEXT,
    Schema,
    array,
    enum,
    integer,
    neutral,
    obj,
    optional,
    ref,
    text,
)
from schemas import limits
from schemas.dialects.openai_batches import ENDPOINTS

__all__ = ["BATCH_SCHEMAS"]

_TIME: Final[Schema] = {"type": "string", "format": "date-time"}
_COUNTS: Final = ("processing", "succeeded", "errored", "canceled", "expired")

_TIMES: Final = (
    *("created_at", "in_progress_at", "expires_at", "finalizing_at", "completed_at"),
    *("failed_at", "expired_at", "cancelling_at", "cancelled_at"),
)


def _page(name: str) -> Schema:
    """Return OpenAI's page of some objects."""
    return obj(
        {
            "object": enum("list"),
            "data": array(ref(name)),
            "first_id": optional(TEXT),
            "last_id": optional(TEXT),
            "has_more": FLAG,
        },
        "object data has_more",
    )


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
    "FileForm": obj(
        {
            "purpose": enum("batch"),
            "file": {"type": "string", "contentMediaType": "application/octet-stream"},
            "expires_after[anchor]": enum("created_at"),
            "expires_after[seconds]": text(7, r"^[0-9]{4,7}$", 4),
        },
        "purpose file",
        closed=True,
    ),
    "File": obj(
        {
            "id": TEXT,
            "object": enum("file"),
            "bytes": integer(0),
            "created_at": integer(0),
            "expires_at": integer(0),
            "filename": TEXT,
            "purpose": enum("batch", "batch_output"),
            "status": enum("processed"),
            "status_details": NULL,
        },
        "id object bytes created_at filename purpose status",
    ),
    "FileList": _page("File"),
    "FileDeleted": obj({"id": TEXT, "object": enum("file"), "deleted": FLAG}, "id object deleted"),
    "BatchRequest": obj(
        {
            "input_file_id": text(512),
            "endpoint": enum(*ENDPOINTS),
            "completion_window": enum("24h"),
            "metadata": optional(
                {
                    "type": "object",
                    "maxProperties": 16,
                    "additionalProperties": text(512),
                    "propertyNames": {"maxLength": 512},
                }
            ),
            "output_expires_after": neutral("null"),
        },
        "input_file_id endpoint completion_window",
        closed=True,
    ),
    "Batch": obj(
        {
            "id": TEXT,
            "object": enum("batch"),
            "endpoint": TEXT,
            "errors": optional(
                obj({"object": enum("list"), "data": array(ref("BatchFault"))}, "object data")
            ),
            "input_file_id": TEXT,
            "completion_window": enum("24h"),
            "status": enum(
                *("validating", "in_progress", "completed", "failed", "expired"),
                *("cancelling", "cancelled"),
            ),
            "output_file_id": optional(TEXT),
            "error_file_id": optional(TEXT),
            **{name: optional(integer(0)) for name in _TIMES},
            "request_counts": obj(
                {name: integer(0) for name in ("total", "completed", "failed")},
                "total completed failed",
            ),
            "metadata": optional(OPEN_OBJECT),
        },
        "id object endpoint errors input_file_id completion_window status request_counts",
    ),
    "BatchFault": obj(
        {
            "code": TEXT,
            "message": TEXT,
            "line": optional(integer(1)),
            "param": optional(TEXT),
        },
        "code message line param",
    ),
    "BatchList": _page("Batch"),
}
