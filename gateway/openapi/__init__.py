"""The description of the HTTP API that `GET /v1/openapi.json` serves; tests keep it true."""

from gateway.openapi.document import openapi_document
from gateway.openapi.operation import Operation
from gateway.openapi.operations import OPERATIONS

__all__ = ["OPERATIONS", "Operation", "openapi_document"]
