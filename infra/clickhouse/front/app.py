"""ClickHouse's HTTP interface over the embedded engine, as a Starlette app.

Owns requests and responses: credentials, where the query stands, settings and parameters,
encodings, headers, status of errors, and the bound on queries that wait. Sessions (`session_id`)
are accepted without effect: a temporary table or a SET lasts one request.

Source: https://clickhouse.com/docs/interfaces/http
"""

import asyncio
import base64
import hmac
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from infra.clickhouse.front import compression, guard, sql, statuses
from infra.clickhouse.front.engine import Engine, EngineError, Query, Result
from infra.clickhouse.front.form import FORM_TYPE, read_form
from infra.ports import Entropy
from schemas import limits

# Parameters of the interface itself, or without meaning for one engine in one process.
_NOT_SETTINGS = frozenset(
    {
        "query",
        "database",
        "default_format",
        "user",
        "password",
        "quota_key",
        "query_id",
        "session_id",
        "session_timeout",
        "session_check",
        "session_timezone",
        "role",
        "compress",
        "decompress",
        "buffer_size",
        "wait_end_of_query",
        "client_protocol_version",
        "enable_http_compression",
        "http_zlib_compression_level",
        "network_compression_method",
        "send_progress_in_http_headers",
        "stacktrace",
        "close_session",
        "http_headers_progress_interval_ms",
        "http_write_exception_in_output_format",
        "add_http_cors_header",
        "http_response_buffer_size",
        "cancel_http_readonly_queries_on_client_close",
    }
)
_COMPRESS_FROM_BYTES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The one user of the embedded ClickHouse, and the database it lands in."""

    user: str
    password: str
    database: str

    def admits(self, user: str, password: str) -> bool:
        """Tell whether these are its credentials, in constant time; without a password `default`
        too."""
        names = [self.user] if self.password else [self.user, "default"]
        named = [hmac.compare_digest(user.encode(), name.encode()) for name in names]
        right = hmac.compare_digest(password.encode(), self.password.encode())
        return any(named) and right


class Refused(Exception):
    """A request that ends before the engine, with ClickHouse's error code."""

    def __init__(self, status: int, code: int, name: str, message: str) -> None:
        super().__init__(f"Code: {code}. DB::Exception: {message}. ({name})")
        self.status, self.code = status, code


class Front:
    """Answers requests with the engine's help; holds the threads in which queries run."""

    def __init__(self, engine: Engine, account: Account, entropy: Entropy) -> None:
        self._engine = engine
        self._account = account
        self._entropy = entropy
        self._threads = ThreadPoolExecutor(limits.CLICKHOUSE_WORKERS, "clickhouse")
        self._open = 0

    def app(self) -> Starlette:
        """Return the app; it starts and stops nothing."""
        return Starlette(
            routes=[
                Route("/", self.query, methods=["GET", "POST"]),
                Route("/query", self.query, methods=["GET", "POST"]),
                Route("/ping", self.ping, methods=["GET"]),
                Route("/replicas_status", self.ping, methods=["GET"]),
            ]
        )

    def close(self) -> None:
        """Wait for queries that run; called after the server has stopped."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    async def ping(self, request: Request) -> Response:
        """Say that the engine is up, to anybody."""
        return Response("Ok.\n", media_type="text/plain; charset=UTF-8")

    async def query(self, request: Request) -> Response:
        """Run one query; see the module docstring."""
        query_id = request.query_params.get("query_id") or self._entropy.uuid()
        try:
            return await self._answer(request, query_id)
        except Refused as error:
            return self._error(str(error), error.code, error.status, query_id)
        except sql.SqlError as error:
            message = f"Code: {error.code}. DB::Exception: {error}. ({error.name})"
            return self._error(message, error.code, statuses.status_of(error.code), query_id)
        except EngineError as error:
            code = statuses.code_of(str(error))
            return self._error(str(error), code, statuses.status_of(code), query_id)

    async def _answer(self, request: Request, query_id: str) -> Response:
        parameters = dict(request.query_params)
        self._authenticate(request.headers, parameters)
        body = await _read_body(request)
        text = parameters.get("query", "").encode()
        content_type = request.headers.get("content-type", "")
        if content_type.lower().startswith(FORM_TYPE):
            form = read_form(content_type, body)
            body = form.pop("query", "").encode()
            parameters |= form
        whole = b"\n".join(part for part in (text, body) if part)
        if not whole and request.method == "GET":
            return await self.ping(request)
        if self._open >= limits.CLICKHOUSE_QUEUE_MAX:
            raise Refused(
                503, 202, "TOO_MANY_SIMULTANEOUS_QUERIES", "Too many simultaneous queries"
            )
        self._open += 1
        try:
            query = self._query(whole, parameters, request)
            loop = asyncio.get_running_loop()
            result = await loop.run_in_executor(self._threads, self._engine.run, query)
        finally:
            self._open -= 1
        return self._respond(query, result, request, query_id)

    def _authenticate(self, headers: Headers, parameters: Mapping[str, str]) -> None:
        """Check the first credentials given: Basic, X-ClickHouse headers, then query parameters."""
        user, password = _credentials(headers, parameters)
        if not self._account.admits(user or "default", password or ""):
            given = user is not None or password is not None
            raise Refused(
                403 if given else 401,
                516,
                "AUTHENTICATION_FAILED",
                f"{user or 'default'}: Authentication failed: password is incorrect, or there is "
                "no user with such name",
            )

    def _query(self, whole: bytes, parameters: Mapping[str, str], request: Request) -> Query:
        default_format = (
            parameters.get("default_format")
            or request.headers.get("x-clickhouse-format")
            or "TabSeparated"
        )
        if not default_format.isidentifier():
            raise sql.SqlError(f"Unknown format {default_format}", 73, "UNKNOWN_FORMAT")
        statement = sql.read(whole, default_format, limits.CLICKHOUSE_SQL_BYTES_MAX)
        guard.check(statement)
        return Query(
            statement=statement,
            database=parameters.get("database")
            or request.headers.get("x-clickhouse-database")
            or self._account.database,
            settings={
                name: value
                for name, value in parameters.items()
                if name not in _NOT_SETTINGS and not name.startswith("param_")
            },
            parameters={
                name.removeprefix("param_"): value
                for name, value in parameters.items()
                if name.startswith("param_")
            },
            default_format=default_format,
            read_only=request.method == "GET",
        )

    def _respond(self, query: Query, result: Result, request: Request, query_id: str) -> Response:
        result_format = query.statement.result_format or query.default_format
        headers = self._headers(query_id) | {
            "X-ClickHouse-Format": result_format,
            "X-ClickHouse-Summary": json.dumps(_summary(result), separators=(",", ":")),
            "Content-Type": statuses.content_type_of(result_format),
        }
        body, encoding = result.body, None
        if request.query_params.get("enable_http_compression", "0").lower() in ("1", "true"):
            encoding = compression.choose(request.headers.get("accept-encoding", ""))
        if encoding and len(body) >= _COMPRESS_FROM_BYTES:
            body = compression.compress(body, encoding)
            headers["Content-Encoding"] = encoding
        return Response(body, headers=headers)

    def _error(self, message: str, code: int, status: int, query_id: str) -> Response:
        headers = self._headers(query_id) | {
            "X-ClickHouse-Exception-Code": str(code),
            "Content-Type": "text/plain; charset=UTF-8",
        }
        if status == 401:
            headers["WWW-Authenticate"] = 'Basic realm="ClickHouse server HTTP API"'
        if status == 503:
            headers["Retry-After"] = str(limits.RETRY_AFTER_S)
        shown = f"{message.rstrip()} (version {self._engine.version} (chDB))\n"
        return Response(shown, status, headers=headers)

    def _headers(self, query_id: str) -> dict[str, str]:
        return {
            "X-ClickHouse-Server-Display-Name": "millstream",
            "X-ClickHouse-Query-Id": _printable(query_id),
            "X-ClickHouse-Timezone": "UTC",
        }


def _credentials(headers: Headers, parameters: Mapping[str, str]) -> tuple[str | None, str | None]:
    scheme, _, rest = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "basic":
        try:
            user, _, password = base64.b64decode(rest, validate=True).decode().partition(":")
        except ValueError:
            raise Refused(
                401, 516, "AUTHENTICATION_FAILED", "Authorization is not valid Basic"
            ) from None
        return user, password
    if "x-clickhouse-user" in headers or "x-clickhouse-key" in headers:
        return headers.get("x-clickhouse-user"), headers.get("x-clickhouse-key")
    return parameters.get("user"), parameters.get("password")


async def _read_body(request: Request) -> bytes:
    """Read and decompress the body within its bound."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limits.CLICKHOUSE_BODY_BYTES_MAX:
            raise Refused(
                413,
                1_002,
                "UNKNOWN_EXCEPTION",
                f"body is larger than {limits.CLICKHOUSE_BODY_BYTES_MAX} bytes",
            )
        parts.append(part)
    encoding = request.headers.get("content-encoding", "")
    try:
        return compression.decompress(b"".join(parts), encoding, limits.CLICKHOUSE_BODY_BYTES_MAX)
    except compression.EncodingError as error:
        raise Refused(400, 89, "UNKNOWN_COMPRESSION_METHOD", str(error)) from error


def _summary(result: Result) -> dict[str, str]:
    return {
        "read_rows": str(result.read_rows),
        "read_bytes": str(result.read_bytes),
        "written_rows": str(result.written_rows),
        "written_bytes": str(result.written_bytes),
        "total_rows_to_read": "0",
        "result_rows": str(result.written_rows or result.result_rows),
        "result_bytes": str(result.written_bytes or len(result.body)),
        "elapsed_ns": str(int(result.elapsed_s * 1e9)),
    }


def _printable(text: str) -> str:
    return "".join(character for character in text if " " <= character <= "~")[:256]
