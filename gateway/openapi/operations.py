"""Every route of the HTTP API with its parameters, bodies and statuses, as data.

Owns which statuses an operation may answer with; a test compares the routes with `app.py`, fuzzing
the statuses with what is served. Schemas stand in the modules beside this one.
"""

from typing import Final

from gateway.openapi.batch_operations import BATCH_OPERATIONS
from gateway.openapi.forms import TEXT, enum, integer, ref, text
from gateway.openapi.operation import Family, Operation, Parameter
from gateway.openapi.shared_parameters import KEY, VERSION

__all__ = ["OPERATIONS"]

_AFTER: Final = Parameter(
    name="last-event-id",
    place="header",
    schema=text(19, r"^[0-9]{1,9}-[0-9]{1,9}$"),
    description="The `id` of the last event that arrived; what follows is sent. A POST needs its "
    "idempotency-key for this.",
)
_RESUMABLE: Final = Parameter(
    name="millstream-resumable",
    place="header",
    schema=enum("true", "false"),
    description="true: the reply runs on for a while after its client has left.",
)
_REPLY_ID: Final = Parameter(
    name="reply_id",
    place="path",
    schema=text(128, r"^[A-Za-z0-9_\-]+$", 1),
    description="Id of a reply.",
    required=True,
)
_STREAM: Final = Parameter(
    name="stream",
    place="query",
    schema=enum("true", "false"),
    description="true: send the reply as events, as `accept: text/event-stream` does.",
)
_STARTING_AFTER: Final = Parameter(
    name="starting_after",
    place="query",
    schema=integer(0, 999_999_999),
    description="The `sequence_number` of the last event that arrived; what follows is sent.",
)
_PAGE: Final = (
    Parameter(name="limit", place="query", schema=integer(1, 1_000), description="Models a page."),
    Parameter(name="after_id", place="query", schema=TEXT, description="Models after this one."),
    Parameter(name="before_id", place="query", schema=TEXT, description="Models before this one."),
)
_MODEL_ID: Final = Parameter(
    name="model_id",
    place="path",
    schema=ref("ModelId"),
    description="Id of a model.",
    required=True,
)

_GENERATING: Final = (400, 401, 404, 408, 410, 413, 422, 429, 500, 503, 504, 529)
_READING: Final = (400, 401, 404, 408, 413, 529)
_RESUMING: Final = (400, 401, 404, 410, 500, 503, 504, 529)


def _generating(path: str, name: str, summary: str, family: Family, schema: str) -> Operation:
    own = (VERSION,) if family == "anthropic" else ()
    return Operation(
        method="POST",
        path=path,
        name=name,
        summary=summary,
        family=family,
        errors=_GENERATING,
        tells_limits=True,
        parameters=(*own, KEY, _AFTER, _RESUMABLE),
        body=f"{schema}Request",
        reply=schema,
        streams=True,
    )


def _resumable(path: str, name: str, family: Family, schema: str) -> tuple[Operation, ...]:
    """Return what can be done with a reply by its id."""
    numbered = (_STARTING_AFTER,) if name == "response" else ()
    return (
        Operation(
            method="GET",
            path=f"{path}/{{reply_id}}",
            name=f"retrieve_{name}",
            summary="Get a reply whole once it has ended, or its stream from any event on.",
            family=family,
            errors=_RESUMING,
            parameters=(_REPLY_ID, _AFTER, _STREAM, *numbered),
            reply=schema,
            streams=True,
        ),
        Operation(
            method="POST",
            path=f"{path}/{{reply_id}}/cancel",
            name=f"cancel_{name}",
            summary="End a running reply; answers once that is certain.",
            family=family,
            errors=(400, 401, 404, 529),
            parameters=(_REPLY_ID,),
            reply="Outcome",
        ),
    )


def _own(method: str, path: str, summary: str, **more: object) -> Operation:
    name = f"{path.strip('/').replace('/', '_').replace('.', '_') or 'root'}_{method.lower()}"
    values: dict[str, object] = {"family": "either", "needs_key": False, "media": "text/plain"}
    return Operation(method=method, path=path, name=name, summary=summary, **values | more)  # type: ignore[arg-type] # checked by the test of the document


OPERATIONS: Final[tuple[Operation, ...]] = (
    _generating("/v1/messages", "create_message", "Answer a conversation.", "anthropic", "Message"),
    Operation(
        method="POST",
        path="/v1/messages/count_tokens",
        name="count_tokens",
        summary="Count the input tokens that /v1/messages would bill.",
        family="anthropic",
        errors=(*_READING[:-1], 429, 529),
        tells_limits=True,
        parameters=(VERSION,),
        body="CountTokensRequest",
        reply="TokenCount",
    ),
    *_resumable("/v1/messages", "message", "anthropic", "Message"),
    *BATCH_OPERATIONS,
    _generating(
        "/v1/chat/completions",
        "create_chat_completion",
        "Answer a conversation.",
        "openai",
        "ChatCompletion",
    ),
    *_resumable("/v1/chat/completions", "chat_completion", "openai", "ChatCompletion"),
    _generating("/v1/completions", "create_completion", "Continue a text.", "openai", "Completion"),
    *_resumable("/v1/completions", "completion", "openai", "Completion"),
    _generating("/v1/responses", "create_response", "Answer an input.", "openai", "Response"),
    *_resumable("/v1/responses", "response", "openai", "Response"),
    Operation(
        method="POST",
        path="/v1/embeddings",
        name="create_embedding",
        summary="Refused with 400: no model that is served makes embeddings.",
        family="openai",
        errors=_READING,
        body="EmbeddingRequest",
    ),
    Operation(
        method="GET",
        path="/v1/models",
        name="list_models",
        summary="List the models, in one shape that both SDKs read.",
        family="either",
        errors=(400, 401, 529),
        parameters=_PAGE,
        reply="ModelList",
    ),
    Operation(
        method="GET",
        path="/v1/models/{model_id}",
        name="retrieve_model",
        summary="Describe a model.",
        family="either",
        errors=(401, 404, 529),
        parameters=(_MODEL_ID,),
        reply="Model",
    ),
    Operation(
        method="GET",
        path="/v1/openapi.json",
        name="openapi",
        summary="This document.",
        family="either",
        reply="OpenApi",
        needs_key=False,
    ),
    Operation(
        method="GET",
        path="/admin/v1/usage-totals",
        name="usage_totals",
        summary="Usage of every org; needs an admin key.",
        family="either",
        errors=(401, 403, 529),
        reply="UsageTotals",
    ),
    _own("GET", "/", "Name and models.", media="application/json", reply="Root"),
    _own("HEAD", "/", "Answers 200: some clients ask before they start.", media=""),
    _own("GET", "/health", "200 while the process answers."),
    _own("GET", "/ready", "200 while requests are served.", extra={503: "Not ready yet, and why."}),
    _own("GET", "/metrics", "Metrics in Prometheus's text form."),
)
