"""Queries sent as forms: what is read, what is refused."""

import pytest

from infra.clickhouse.front.form import read_form
from infra.clickhouse.front.sql import SqlError

TYPE = "multipart/form-data; boundary=cut"


def form(*parts: tuple[str, str]) -> bytes:
    """Return a form's body of (header parameters, content) parts."""
    text = "".join(
        f"--cut\r\nContent-Disposition: form-data; {names}\r\n\r\n{content}\r\n"
        for names, content in parts
    )
    return f"{text}--cut--\r\n".encode()


def test_fields_are_read_unchanged() -> None:
    """Names and contents come back as sent: line ends, quotes, two dashes, any script."""
    content = "SELECT '--cu'\n\r\n-- π ✓\r\n"
    body = form(('name="query"', content), ('name="param_ids"', "['a','b']"))
    assert read_form(TYPE, body) == {"query": content, "param_ids": "['a','b']"}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no form",
        form(("nothing", "x")),
        form(('name="external"; filename="external"', "1")),
        form(('name="query"', "x")).replace(b"x", b"\xff"),
    ],
)
def test_what_is_no_form_of_fields_is_refused(body: bytes) -> None:
    """No parts, no name, a file and bytes that are no text raise a typed error."""
    with pytest.raises(SqlError):
        read_form(TYPE, body)
