"""The routes of batches and files as data."""

from typing import Final

from gateway.openapi.forms import TEXT, enum, integer, text
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

_FILE_ID: Final = Parameter(
    name="file_id",
    place="path",
    schema=text(128, r"^[A-Za-z0-9_\-]+$", 1),
    description="Id of a file.",
    required=True,
)
_ORDER: Final = Parameter(
    name="order",
    place="query",
    schema=enum("asc", "desc"),
    description="By time of creation; newest first unasked.",
)
_PURPOSE: Final = Parameter(
    name="purpose", place="query", schema=TEXT, description="Files of this purpose alone."
)


def _openai_page(limit_max: int) -> tuple[Parameter, ...]:
    """Return what OpenAI's lists take."""
    size = integer(1, limit_max)
    return (
        Parameter(name="limit", place="query", schema=size, description="Objects a page."),
        Parameter(name="after", place="query", schema=TEXT, description="Those after this id."),
    )


BATCH_OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        method="POST",
        path=_MESSAGES,
        name="create_message_batch",
        summary="Have many messages made in the background, within 24 hours.",
        family="anthropic",
        errors=(400, 401, 404, 408, 413, 422, 429, 503, 529),
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
    Operation(
        method="POST",
        path="/v1/files",
        name="create_file",
        summary="Store a batch's input: one JSON object a line.",
        family="openai",
        errors=(400, 401, 404, 408, 413, 422, 503, 529),
        parameters=(KEY,),
        body="FileForm",
        body_media="multipart/form-data",
        reply="File",
    ),
    Operation(
        method="GET",
        path="/v1/files",
        name="list_files",
        summary="List the workspace's files, uploaded ones and those that batches made.",
        family="openai",
        errors=(400, 401, 404, 503, 529),
        parameters=(*_openai_page(10_000), _ORDER, _PURPOSE),
        reply="FileList",
    ),
    *(
        Operation(
            method=method,
            path=f"/v1/files/{{file_id}}{end}",
            name=name,
            summary=summary,
            family="openai",
            errors=(401, 404, 503, 529),
            parameters=(_FILE_ID,),
            reply=reply,
            media="application/octet-stream" if reply is None else "application/json",
        )
        for method, end, name, summary, reply in (
            ("GET", "", "retrieve_file", "Get a file's description.", "File"),
            ("DELETE", "", "delete_file", "Delete a file.", "FileDeleted"),
            ("GET", "/content", "file_content", "Get a file's bytes.", None),
        )
    ),
    Operation(
        method="POST",
        path="/v1/batches",
        name="create_batch",
        summary="Have a file's requests answered in the background, within 24 hours.",
        family="openai",
        errors=(400, 401, 404, 408, 413, 422, 429, 503, 529),
        parameters=(KEY,),
        body="BatchRequest",
        reply="Batch",
    ),
    Operation(
        method="GET",
        path="/v1/batches",
        name="list_batches",
        summary="List the workspace's batches, newest first.",
        family="openai",
        errors=(400, 401, 404, 503, 529),
        parameters=_openai_page(100),
        reply="BatchList",
    ),
    *(
        Operation(
            method=method,
            path=f"/v1/batches/{{batch_id}}{end}",
            name=name,
            summary=summary,
            family="openai",
            errors=(401, 404, 503, 529),
            parameters=(_BATCH_ID,),
            reply="Batch",
        )
        for method, end, name, summary in (
            ("GET", "", "retrieve_batch", "Get a batch."),
            ("POST", "/cancel", "cancel_batch", "Have no more of its requests begun."),
        )
    ),
)
