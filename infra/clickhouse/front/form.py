"""Queries sent as a form: how ClickHouse's clients send parameters too long for an address.

Owns the reading of `multipart/form-data`; the fields are `query` and `param_*`. External tables,
which come as files in such a form, are refused. Called by `app`.

Source: RFC 7578; https://clickhouse.com/docs/interfaces/http
"""

from email.message import EmailMessage
from email.parser import BytesParser
from email.policy import HTTP

from infra.clickhouse.front.sql import SqlError

__all__ = ["FORM_TYPE", "read_form"]

FORM_TYPE = "multipart/form-data"


def read_form(content_type: str, body: bytes) -> dict[str, str]:
    """Return the form's fields by name. Raises SqlError."""
    head = b"Content-Type: " + content_type.encode("latin-1") + b"\r\n\r\n"
    parsed = BytesParser(EmailMessage, policy=HTTP).parsebytes(head + body)
    fields = {}
    for part in parsed.iter_parts():
        name = part.get_param("name", header="content-disposition")
        if part.get_filename() is not None:
            raise SqlError("External tables are not supported here", 48, "NOT_IMPLEMENTED")
        content = part.get_payload(decode=True)
        if not isinstance(name, str) or not isinstance(content, bytes):
            raise SqlError("The form has a part without a name or with parts of its own")
        try:
            fields[name] = content.decode()
        except UnicodeDecodeError as error:
            raise SqlError(f"Field {name!r} of the form is not UTF-8") from error
    if not fields:
        raise SqlError("The form has no fields")
    return fields
