"""HTTP status and content type, as ClickHouse's own server chooses them. Pure tables.

Source: ClickHouse `src/Server/HTTP/exceptionCodeToHTTPStatus.cpp` and the output formats' content
types.
"""

import re

_CODE = re.compile(r"Code: (\d+)\.")

_BAD_REQUEST = frozenset(
    {6, 7, 16, 19, 20, 25, 26, 27, 33, 36, 38, 41, 42, 43, 53, 57, 62, 69, 70, 72, 117, 130, 131}
    | {167, 168, 184, 215, 396, 427, 452, 456, 457, 636}
)
_NOT_FOUND = frozenset({46, 47, 50, 51, 56, 60, 63, 73, 78, 81, 115, 218, 336, 511})
_FORBIDDEN = frozenset({192, 193, 497, 512, 516})
_STATUS = {
    **dict.fromkeys(_BAD_REQUEST, 400),
    **dict.fromkeys(_NOT_FOUND, 404),
    **dict.fromkeys(_FORBIDDEN, 403),
    48: 501,  # NOT_IMPLEMENTED
    159: 408,  # TIMEOUT_EXCEEDED
    194: 401,  # REQUIRED_PASSWORD
    202: 503,  # TOO_MANY_SIMULTANEOUS_QUERIES
}

_TYPES = {
    "tabseparated": "text/tab-separated-values; charset=UTF-8",
    "tsv": "text/tab-separated-values; charset=UTF-8",
    "csv": "text/csv; charset=UTF-8; header=absent",
    "csvwithnames": "text/csv; charset=UTF-8; header=present",
    "json": "application/json; charset=UTF-8",
    "jsoncompact": "application/json; charset=UTF-8",
    "jsonstrings": "application/json; charset=UTF-8",
    "jsoneachrow": "application/x-ndjson; charset=UTF-8",
    "xml": "application/xml; charset=UTF-8",
    "markdown": "text/markdown; charset=UTF-8",
    "native": "application/octet-stream",
    "rowbinary": "application/octet-stream",
    "parquet": "application/octet-stream",
    "arrow": "application/octet-stream",
    "arrowstream": "application/octet-stream",
    "orc": "application/octet-stream",
}


def code_of(message: str) -> int:
    """Return ClickHouse's error code in a message of the engine; 1001 (STD_EXCEPTION) without
    one."""
    match = _CODE.search(message)
    return int(match[1]) if match else 1001


def status_of(code: int) -> int:
    """Return the HTTP status of an error code."""
    return _STATUS.get(code, 500)


def content_type_of(result_format: str) -> str:
    """Return the content type of a result in this format."""
    name = result_format.lower()
    if name.startswith(("tabseparated", "tsv")):
        name = "tsv"
    elif name.startswith(("rowbinary", "jsoncompacteachrow")):
        name = "rowbinary" if name.startswith("row") else "jsoneachrow"
    return _TYPES.get(name, "text/plain; charset=UTF-8")
