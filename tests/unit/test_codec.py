"""Avro single-object encoding, released schemas and their lock."""

import hashlib
import json
from importlib import resources

import msgspec
import pytest
from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType
from avro.schema import parse
from msgspec.structs import fields

from schemas.codec import SUBJECTS, Undecodable, decode, encode, released
from schemas.replies import ReplyRecord, entry_of
from schemas.requests import RequestAccepted
from tests.builders import closed, delta, request, start

LOCK = json.loads((resources.files("schemas.avro") / "lock.json").read_text())
RECORD = ReplyRecord(
    entries=(entry_of(start()), entry_of(delta(0, 5, ends_with=(5,))), entry_of(closed()))
)


def test_events_survive_a_round_trip() -> None:
    """Decoding what was encoded gives an equal event."""
    assert decode(encode(RECORD), ReplyRecord) == RECORD
    assert decode(encode(request()), RequestAccepted) == request()


@pytest.mark.parametrize(
    "value",
    [b"", b"\xc3\x01", b"{}", b"\xc3\x01" + b"x" * 20, encode(RECORD)[:-3], encode(RECORD) + b"x"],
)
def test_bytes_that_are_no_event_are_refused(value: bytes) -> None:
    """Bad framing, unknown fingerprints, short and long bodies raise Undecodable."""
    with pytest.raises(Undecodable):
        decode(value, ReplyRecord)


def test_an_event_of_another_kind_is_refused() -> None:
    """A record is never read under a schema that did not write it."""
    with pytest.raises(Undecodable):
        decode(encode(request()), ReplyRecord)


def test_released_schemas_are_exactly_the_locked_ones() -> None:
    """A released file never changes, and no file is unlocked; fingerprints do not collide."""
    found = {
        f"{schema.subject}.v{schema.version}.avsc": {
            "sha256": hashlib.sha256(schema.text.encode()).hexdigest(),
            "crc64": schema.fingerprint.hex(),
        }
        for schemas in released().values()
        for schema in schemas
    }
    assert found == LOCK
    assert len({entry["crc64"] for entry in LOCK.values()}) == len(LOCK)


def test_versions_of_a_subject_are_fully_and_transitively_compatible() -> None:
    """Each version reads every other one (FULL_TRANSITIVE)."""
    for schemas in released().values():
        for reader in schemas:
            for writer in schemas:
                verdict = ReaderWriterCompatibilityChecker().get_compatibility(
                    reader=parse(reader.text), writer=parse(writer.text)
                )
                assert verdict.compatibility is SchemaCompatibilityType.compatible, verdict


def test_no_schema_uses_a_logical_type() -> None:
    """Scale and unit changes of logical types pass Avro's own rules, so units stand in names."""
    for schemas in released().values():
        for schema in schemas:
            assert "logicalType" not in schema.text, schema.subject


def test_every_event_field_stands_in_its_newest_schema() -> None:
    """Classes and schema files tell the same story."""
    for kind, subject in SUBJECTS.items():
        named = [field["name"] for field in json.loads(released()[subject][-1].text)["fields"]]
        assert named == [field.name for field in fields(kind)], subject


def test_golden_bytes_of_every_version_still_decode() -> None:
    """One stored sample of each version is read by today's code as it was written."""
    folder = resources.files("schemas.avro") / "golden"
    kinds = {subject: kind for kind, subject in SUBJECTS.items()}
    for name in LOCK:
        subject = name.rsplit(".v", 1)[0]
        sample = json.loads((folder / name.replace(".avsc", ".json")).read_text())
        event: object = decode(bytes.fromhex(sample["hex"]), kinds[subject])
        assert holds(json.loads(msgspec.json.encode(event)), sample["event"]), name


def holds(now: object, then: object) -> bool:
    """Tell whether all that was written then is still there; fields may have been added."""
    if isinstance(then, dict) and isinstance(now, dict):
        return all(name in now and holds(now[name], then[name]) for name in then)
    if isinstance(then, list) and isinstance(now, list):
        return len(now) == len(then) and all(map(holds, now, then))
    return now == then
