"""Uploads: `multipart/form-data` read as it comes, so that a file of any size takes little memory.

Owns what a form may hold and how large its parts are. What is done with a file's bytes is its
taker's. The only import site of python-multipart.

Source: RFC 7578 (multipart/form-data).
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header
from starlette.types import Receive

from gateway.errors import BodyTooLarge, BodyTooSlow, ClientGone
from schemas import limits
from schemas.dialects.canonical import InvalidRequest

__all__ = ["Upload", "read_upload"]

_FIELD_BYTES_MAX: Final = 4 * limits.KIB
_FORM_BYTES_MAX: Final = limits.BATCH_FILE_BYTES_MAX + limits.MIB
"""A file with the form around it."""

Take = Callable[[bytes], Awaitable[None]]
"""Takes the next bytes of the file."""


class Upload:
    """What a form held: small fields, and the name of its one file."""

    def __init__(self) -> None:
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self.size_bytes = 0


async def read_upload(headers: Mapping[str, str], receive: Receive, take: Take) -> Upload:
    """Read a form to its end, handing over the part `file` as it comes.

    Raises: InvalidRequest (no such form, no file, two of them), BodyTooLarge, BodyTooSlow,
        ClientGone, and what `take` raises.
    """
    kind, options = parse_options_header(headers.get("content-type", ""))
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise InvalidRequest("content-type", "expected multipart/form-data with a boundary")
    announced = headers.get("content-length", "")
    if announced.isdigit() and int(announced) > _FORM_BYTES_MAX:
        raise _too_large()
    try:
        form = _Form(boundary)
    except FormParserError as error:
        raise InvalidRequest("content-type", str(error)) from error
    try:
        async with asyncio.timeout(limits.BATCH_FILE_READ_MS / 1000):
            more = True
            while more:
                chunk, more = await _next_chunk(receive)
                for data in form.feed(chunk):
                    await take(data)
    except TimeoutError as error:
        raise BodyTooSlow("the request body did not arrive in time") from error
    return form.end()


class _Form:
    """The state of one form that is being read."""

    def __init__(self, boundary: bytes) -> None:
        self._upload = Upload()
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin_part,
                "on_header_field": self._header_name,
                "on_header_value": self._header_value,
                "on_header_end": self._end_header,
                "on_headers_finished": self._end_headers,
                "on_part_data": self._data,
                "on_part_end": self._end_part,
                "on_end": self._end,
            },
        )
        self._waiting: list[bytes] = []
        """Bytes of the file that nobody has taken yet."""
        self._name, self._value = bytearray(), bytearray()
        self._headers: dict[bytes, bytes] = {}
        self._field: str | None = None
        self._text = bytearray()
        self._is_whole = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """Read on; return the bytes of the file among these. Raises InvalidRequest, BodyTooLarge"""
        try:
            self._parser.write(chunk)
        except FormParserError as error:
            raise InvalidRequest("", f"the form is malformed: {error}") from error
        waiting, self._waiting = self._waiting, []
        return waiting

    def end(self) -> Upload:
        """Return the form. Raises InvalidRequest where it broke off or holds no file."""
        if not self._is_whole:
            raise InvalidRequest("", "the form breaks off")
        if self._upload.filename is None:
            raise InvalidRequest("file", "Field required")
        return self._upload

    def _begin_part(self) -> None:
        self._headers, self._field = {}, None
        self._text.clear()

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _end_header(self) -> None:
        self._headers[bytes(self._name).lower()] = bytes(self._value)
        self._name.clear()
        self._value.clear()

    def _end_headers(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        name = options.get(b"name", b"").decode("utf-8", "replace")
        filename = options.get(b"filename")
        if name != "file":
            self._field = name
            return
        if filename is None:
            raise InvalidRequest("file", "expected a file with a name")
        if self._upload.filename is not None:
            raise InvalidRequest("file", "expected one file")
        shown = filename.decode("utf-8", "replace")
        self._upload.filename = shown[: limits.BATCH_FILENAME_CHARS_MAX]

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._field is None:
            self._upload.size_bytes += end - start
            if self._upload.size_bytes > limits.BATCH_FILE_BYTES_MAX:
                raise _too_large()
            self._waiting.append(data[start:end])
            return
        self._text += data[start:end]
        if len(self._text) > _FIELD_BYTES_MAX:
            raise InvalidRequest(self._field, f"larger than {_FIELD_BYTES_MAX} bytes")

    def _end_part(self) -> None:
        if self._field is not None:
            if len(self._upload.fields) >= limits.BATCH_FORM_FIELDS_MAX:
                raise InvalidRequest("", "too many parts")
            self._upload.fields[self._field] = self._text.decode("utf-8", "replace")

    def _end(self) -> None:
        self._is_whole = True


def _too_large() -> BodyTooLarge:
    return BodyTooLarge(f"file is larger than {limits.BATCH_FILE_BYTES_MAX} bytes")


async def _next_chunk(receive: Receive) -> tuple[bytes, bool]:
    try:
        async with asyncio.timeout(limits.HTTP_BODY_READ_MS / 1000):
            message = await receive()
    except TimeoutError as error:
        raise BodyTooSlow("the request body did not arrive in time") from error
    if message["type"] == "http.disconnect":
        raise ClientGone("the client left while sending")
    return message.get("body", b""), message.get("more_body", False)
