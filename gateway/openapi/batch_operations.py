"""The routes of batches and files as data."""

from typing import Final

from gateway.openapi.forms import TEXT, integer, text
from gateway.openapi.operation import Operation, Parameter
from gateway.openapi.shared_parameters import KEY, VERSION

__all__ = ["BATCH_OPERATIONS"]

_MESSAGES: Final = "/v1/messages/batches"
_BATCH_ID: Final = Parameter(
    name="batch_id",
    place="path",
    schema=text(128, r"^[A-Za-z0-9_\-]+$", 1),
    description="Id of a batch.",
    required=True,
)
_PAGE: Final = (
    Parameter(name="limit", place="query", schema=integer(1, 1_000), description="Batches a page."),
    Parameter(name="after_id", place="query", schema=TEXT, description="Batches after this one."),
    Parameter(name="before_id", place="query", schema=TEXT, description="Batches before this one."),
)

BATCH_OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        method="POST",
        path=_MESSAGES,
        name="create_message_batch",
        summary="Have many messages made in the background, within 24 hours.",
        family="anthropic",
        errors=(400, 401, 404, 408, 413, 422, 503, 529),
        parameters=(VERSION, KEY),
        body="MessageBatchRequest",
        reply="MessageBatch",
    ),
    Operation(
        method="GET",
        path=_MESSAGES,
        name="list_message_batches",
        summary="List the workspace's batches, newest first.",
        family="anthropic",
        errors=(400, 401, 503, 529),
        parameters=_PAGE,
        reply="MessageBatchList",
    ),
    Operation(
        method="GET",
        path=f"{_MESSAGES}/{{batch_id}}",
        name="retrieve_message_batch",
        summary="Get a batch; its counts stand once all of it has ended.",
        family="anthropic",
        errors=(401, 404, 503, 529),
        parameters=(_BATCH_ID,),
        reply="MessageBatch",
    ),
    Operation(
        method="DELETE",
        path=f"{_MESSAGES}/{{batch_id}}",
        name="delete_message_batch",
        summary="Delete a batch that has ended.",
        family="anthropic",
        errors=(400, 401, 404, 503, 529),
        parameters=(_BATCH_ID,),
        reply="MessageBatchDeleted",
    ),
    Operation(
        method="POST",
        path=f"{_MESSAGES}/{{batch_id}}/cancel",
        name="cancel_message_batch",
        summary="Have no more items of a batch begun; those that run may finish.",
        family="anthropic",
        errors=(401, 404, 503, 529),
        parameters=(_BATCH_ID,),
        reply="MessageBatch",
    ),
    Operation(
        method="GET",
        path=f"{_MESSAGES}/{{batch_id}}/results",
        name="message_batch_results",
        summary="Get the results of a batch that has ended, one JSON object a line, in any order.",
        family="anthropic",
        errors=(401, 404, 503, 529),
        parameters=(_BATCH_ID,),
        media="application/x-jsonl",
    ),
)
