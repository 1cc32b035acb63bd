"""Events to bytes and back: Avro single-object encoding (Avro 1.12 specification, "Single-object
encoding").

Owns which event class is written under which schema file; the files stand in `schemas/avro/`, one
per version, never changed once released. A record with an unknown fingerprint is an error, never
guessed.
"""

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, TypeVar, cast

import fastavro
import msgspec
from fastavro.schema import fingerprint, parse_schema, to_parsing_canonical_form

from schemas.avro_reader import Read, compile_reader
from schemas.avro_writer import compile_writer
from schemas.batches import BatchRecord, ContentPiece, ItemsEnded
from schemas.idempotency import IdempotencyRecord
from schemas.operations import ControlRecord, DeadLetter, ProcessReported
from schemas.quota import QuotaDemanded, QuotaGranted
from schemas.replies import Entry, ReplyRecord
from schemas.reply_reader import read_reply_record
from schemas.reply_writer import write_reply_record
from schemas.requests import RequestAccepted
from schemas.usage import UsageRecorded, UsageTotals

Event = TypeVar("Event")

_MAGIC = b"\xc3\x01"
_HEADER_BYTES = 10
_COMPILED_BYTES_MAX = 64 * 1_024
"""Larger events hold long arrays, which fastavro reads in one call of C."""

SUBJECTS: Mapping[type, str] = {
    RequestAccepted: "request_accepted",
    ReplyRecord: "reply_record",
    UsageRecorded: "usage_recorded",
    UsageTotals: "usage_totals",
    ControlRecord: "control_record",
    ProcessReported: "process_reported",
    DeadLetter: "dead_letter",
    IdempotencyRecord: "idempotency_record",
    QuotaDemanded: "quota_demanded",
    QuotaGranted: "quota_granted",
    BatchRecord: "batch_record",
    ContentPiece: "content_piece",
    ItemsEnded: "items_ended",
}


class Undecodable(ValueError):
    """Bytes that are not an event of the expected kind; callers dead-letter them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """One released version of one subject."""

    subject: str
    version: int
    text: str
    parsed: Any
    fingerprint: bytes
    """CRC-64-AVRO of the canonical form, little-endian, 8 bytes."""
    write: Callable[[Any], bytes]
    """From an event to its body."""
    read: Read
    """From a body that this very version wrote."""


@cache
def released() -> Mapping[str, tuple[Schema, ...]]:
    """Return all schema versions in the package by subject, oldest first."""
    found: dict[str, list[Schema]] = {}
    for file in resources.files("schemas.avro").iterdir():
        if file.name.endswith(".avsc"):
            subject, version = file.name.removesuffix(".avsc").rsplit(".v", 1)
            found.setdefault(subject, []).append(_load(subject, int(version), file.read_text()))
    return {
        subject: tuple(sorted(schemas, key=lambda schema: schema.version))
        for subject, schemas in found.items()
    }


def encode(event: object) -> bytes:
    """Return the event under its newest schema.

    Raises TypeError for a class that is no event, ValueError where a value does not fit its schema.
    """
    schema = _newest(type(event))
    return _MAGIC + schema.fingerprint + schema.write(event)


def decode(value: bytes, kind: type[Event]) -> Event:
    """Return the event that `value` holds, read by the newest schema of its kind.

    Raises Undecodable where the framing, fingerprint or body is not one of ours.
    """
    newest = _newest(kind)
    if value[:2] != _MAGIC:
        raise Undecodable("not Avro single-object encoding (C3 01 missing)")
    print_ = value[2:_HEADER_BYTES]
    writer = newest if print_ == newest.fingerprint else _by_fingerprint(newest.subject, print_)
    try:
        if writer is newest and kind is ReplyRecord:
            return cast(Event, read_reply_record(value, _HEADER_BYTES, _read_entry))
        if writer is newest and len(value) <= _COMPILED_BYTES_MAX:
            datum, end = newest.read(value, _HEADER_BYTES)
        else:
            reader = None if writer is newest else newest.parsed
            datum, end = _read_by_library(value, _HEADER_BYTES, writer.parsed, reader)
        if end != len(value):
            raise Undecodable(f"{len(value) - end} bytes left after {newest.subject}")
        return msgspec.convert(datum, kind)
    except Undecodable:
        raise
    except Exception as error:  # readers raise what they happen to hit
        raise Undecodable(f"{newest.subject}: {error!r}") from error


def _read_entry(value: bytes, position: int) -> tuple[Entry, int]:
    """Read one entry of a reply record, of whatever kind."""
    if len(value) <= _COMPILED_BYTES_MAX:
        datum, end = _entry_reader()(value, position)
    else:
        datum, end = _read_by_library(value, position, _entry_schema(), None)
    return msgspec.convert(datum, Entry), end


def _read_by_library(value: bytes, position: int, writer: Any, reader: Any) -> tuple[Any, int]:
    """Read a body that the writer's schema wrote, as the reader's would have it."""
    body = io.BytesIO(value)
    body.seek(position)
    return fastavro.schemaless_reader(body, writer, reader), body.tell()


@cache
def _entry_reader() -> Read:
    return compile_reader(_entry_items())


@cache
def _entry_schema() -> Any:
    return parse_schema(_entry_items())


def _entry_items() -> Any:
    return json.loads(_newest(ReplyRecord).text)["fields"][0]["type"]["items"]


def _load(subject: str, version: int, text: str) -> Schema:
    parsed = parse_schema(json.loads(text))
    print_ = fingerprint(to_parsing_canonical_form(json.loads(text)), "CRC-64-AVRO")
    return Schema(
        subject=subject,
        version=version,
        text=text,
        parsed=parsed,
        fingerprint=bytes.fromhex(print_),
        write=_writer(subject, json.loads(text)),
        read=compile_reader(json.loads(text)),
    )


def _writer(subject: str, schema: Any) -> Callable[[Any], bytes]:
    if subject != SUBJECTS[ReplyRecord]:
        return compile_writer(schema)
    write_entry = compile_writer(schema["fields"][0]["type"]["items"])
    return lambda record: write_reply_record(record, write_entry)


def _newest(kind: type) -> Schema:
    schema = _newest_by_kind().get(kind)
    if schema is None:
        raise TypeError(f"{kind.__name__} is not an event; add it to schemas.codec.SUBJECTS")
    return schema


@cache
def _newest_by_kind() -> Mapping[type, Schema]:
    return {kind: released()[subject][-1] for kind, subject in SUBJECTS.items()}


@cache
def _by_fingerprint(subject: str, print_: bytes) -> Schema:
    for schema in released()[subject]:
        if schema.fingerprint == print_:
            return schema
    raise Undecodable(f"unknown schema fingerprint {print_.hex()} for {subject}")
