"""The handlers of OpenAI's files: upload, list, get, delete, content.

Owns what each call answers. Called through the routes of `app.py`.
"""

import hashlib
from collections.abc import Mapping
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive

from gateway.answers import json_answer
from gateway.batches.files import FILE_PREFIX, File, Files, uploaded
from gateway.batches.line_stream import LineStream
from gateway.batches.paging import page_of
from gateway.batches.service import KeyUse
from gateway.batches.uploads import Upload, read_upload
from gateway.call import Call, call_of
from gateway.deps import Deps
from gateway.errors import FileUnknown, KeyReused, LogAway, PathUnknown
from gateway.generation import admit
from gateway.idempotency import read_key
from infra.errors import LogError
from schemas.batches import Content, FileDeleted, FileStored
from schemas.dialects import fields
from schemas.dialects.canonical import InvalidRequest
from schemas.dialects.openai_batches import read_file_life_ms, read_purpose
from schemas.operations import KeyCreated
from schemas.requests import Dialect

__all__ = ["content", "create", "delete", "listed", "openai_key", "openai_page", "retrieve"]

_PAGE_LIMIT_MAX: Final = 10_000
_MEDIA_TYPE: Final = "application/octet-stream"


async def create(call: Call, receive: Receive, deps: Deps) -> Response:
    """POST /v1/files: the bytes go to the log as they come; the fact that counts comes last."""
    key = openai_key(call, deps)
    deps.batches.require_room()
    if call.headers.get("content-encoding", "identity") != "identity":
        raise InvalidRequest("content-encoding", "files are not taken compressed")
    value = call.headers.get("idempotency-key")
    key_use = None if value is None else KeyUse(key=read_key(value), fingerprint="")
    file_id = deps.batches.new_id(FILE_PREFIX, key, key_use)
    writing, digest = deps.batches.contents.write(file_id), hashlib.sha256()

    async def take(data: bytes) -> None:
        digest.update(data)
        await writing.add(data)

    try:
        with deps.batches.uploading():
            upload = await read_upload(call.headers, receive, take)
            content = await writing.finish()
    except LogError as error:
        raise LogAway("Service unavailable: the file could not be stored") from error
    fingerprint = None if key_use is None else digest.hexdigest()
    wanted = _stored(deps, key, file_id, upload, content, fingerprint)
    return await _recorded(deps, wanted)


async def listed(request: Request, deps: Deps) -> Response:
    """GET /v1/files."""
    key = openai_key(call_of(request.scope), deps)
    query = request.query_params
    files = await _files(deps).newest(key)
    if "purpose" in query:
        files = [file for file in files if file.purpose == query["purpose"]]
    if "order" in query and fields.as_choice(query["order"], "order", ("asc", "desc")) == "asc":
        files.reverse()
    shown = [file.shown() for file in files]
    return openai_page(shown, query, limit=_PAGE_LIMIT_MAX, limit_max=_PAGE_LIMIT_MAX)


async def retrieve(request: Request, deps: Deps) -> Response:
    """GET /v1/files/{id}."""
    return json_answer((await _find(request, deps)).shown())


async def delete(request: Request, deps: Deps) -> Response:
    """DELETE /v1/files/{id}: batches that read it already go on."""
    file = await _find(request, deps)
    await deps.batches.ledger.append(FileDeleted(file_id=file.file_id))
    return json_answer({"id": file.file_id, "object": "file", "deleted": True})


async def content(request: Request, deps: Deps) -> ASGIApp:
    """GET /v1/files/{id}/content."""
    file = await _find(request, deps)
    return LineStream(
        call_of(request.scope),
        deps,
        _files(deps).read(file),
        media_type=_MEDIA_TYPE,
        place=deps.batches.reading(),
        gone=FileUnknown("the file is not kept any more"),
    )


def openai_key(call: Call, deps: Deps) -> KeyCreated:
    """Return the key of a call to a path that OpenAI's API alone has here.

    Raises: PathUnknown for clients of Anthropic's, whose files are something else.
    """
    if call.dialect is Dialect.ANTHROPIC:
        raise PathUnknown(f"no such path: {call.method} {call.path}")
    return admit(call, deps)


def openai_page(
    shown: list[dict[str, object]], query: Mapping[str, str], *, limit: int, limit_max: int
) -> Response:
    """Answer with a page of objects by `limit` and `after`. Raises InvalidRequest."""
    page = page_of(
        shown,
        lambda one: str(one["id"]),
        query,
        after="after",
        before=None,
        limit=limit,
        limit_max=limit_max,
    )
    data = page.entries
    return json_answer(
        {
            "object": "list",
            "data": data,
            "first_id": data[0]["id"] if data else None,
            "last_id": data[-1]["id"] if data else None,
            "has_more": page.has_more,
        }
    )


def _files(deps: Deps) -> Files:
    return Files(deps.batches, deps.clock)


async def _find(request: Request, deps: Deps) -> File:
    key = openai_key(call_of(request.scope), deps)
    return await _files(deps).find(key, request.path_params["file_id"])


def _stored(
    deps: Deps,
    key: KeyCreated,
    file_id: str,
    upload: Upload,
    content: Content,
    fingerprint: str | None,
) -> FileStored:
    """Return the fact of an upload. Raises InvalidRequest for a field that is no good."""
    life_ms, now_ms = read_file_life_ms(upload.fields), deps.clock.now_ms()
    assert upload.filename is not None, "a form without a file was refused"
    return FileStored(
        file_id=file_id,
        org=key.org,
        workspace=key.workspace,
        purpose=read_purpose(upload.fields),
        filename=upload.filename,
        size_bytes=upload.size_bytes,
        content=content,
        created_ms=now_ms,
        expires_ms=now_ms + life_ms,
        fingerprint=fingerprint,
    )


async def _recorded(deps: Deps, wanted: FileStored) -> Response:
    """Record a file and answer; under an idempotency key the first one with its id counts."""
    if wanted.fingerprint is not None:
        await deps.batches.catch_up(wanted.file_id)
    known = deps.batches.book.file(wanted.file_id)
    if known is None:
        await deps.batches.ledger.append(wanted)
        known = deps.batches.book.file(wanted.file_id)
        assert known is not None, "it was read back"
    if known.stored.fingerprint != wanted.fingerprint:
        raise KeyReused("this idempotency key was used with another file")
    if known.deleted:
        raise FileUnknown("the file that this idempotency key made was deleted")
    answer = json_answer(uploaded(known.stored).shown())
    if known.stored != wanted:
        answer.headers["idempotent-replayed"] = "true"
    return answer
