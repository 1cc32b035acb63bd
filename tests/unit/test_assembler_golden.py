"""Golden transcripts: to the byte what clients were sent, and what the SDKs make of it."""

import os
from functools import cache
from typing import Any

import anthropic
import openai
import pytest
from anthropic._streaming import SSEDecoder as AnthropicDecoder
from openai._streaming import SSEDecoder as OpenAiDecoder

from schemas.requests import Dialect
from tests.golden_transcripts import Transcript, rendered, text_of, transcripts
from tests.sdk_streams import READERS

SOAK = os.environ.get("MILLSTREAM_SOAK") == "1"
WHOLE = [transcript for transcript in transcripts() if transcript.body is not None]
BROKEN = [transcript for transcript in transcripts() if transcript.body is None]
BOTH = {Dialect.ANTHROPIC, Dialect.OPENAI}
DECODERS: dict[Dialect, Any] = {Dialect.ANTHROPIC: AnthropicDecoder}
"""By dialect; OpenAI's for the others."""


def test_transcripts_are_what_the_assembler_makes() -> None:
    """Not a byte of any event or body changes unseen."""
    for path, situation in rendered():
        assert path.read_text() == text_of(situation), path.name


def test_every_situation_is_there() -> None:
    """The situations that clients meet are kept, each in every dialect that can show it."""
    for situation in (
        *("text", "two_parallel_tools", "text_and_tool", "empty_arguments", "refusal"),
        *("error_mid_stream", "max_tokens", "stop_sequence", "structured_output", "thinking"),
        "cached_prompt",
    ):
        assert {each.dialect for each in transcripts() if each.situation == situation} >= BOTH


@cache
def expected(transcript: Transcript) -> Any:
    """Return what the SDK makes of the body."""
    assert transcript.body is not None
    return READERS[transcript.dialect].body(transcript.body)


@pytest.mark.parametrize("transcript", WHOLE, ids=lambda transcript: transcript.name)
def test_stream_adds_up_to_the_body_in_the_sdk(transcript: Transcript) -> None:
    """Sync and async, by event and byte by byte, the accumulated message is the body's."""
    reader, stream = READERS[transcript.dialect], b"".join(transcript.stream)
    for pieces in (transcript.stream, [bytes([byte]) for byte in stream]):
        assert reader.stream(pieces) == expected(transcript)
        assert reader.stream_async(pieces) == expected(transcript)


@pytest.mark.parametrize("transcript", transcripts(), ids=lambda transcript: transcript.name)
def test_no_cut_between_two_bytes_changes_an_event(transcript: Transcript) -> None:
    """Wherever the network cuts a stream, the SDK's decoder reads the same events."""
    decoder = DECODERS.get(transcript.dialect, OpenAiDecoder)
    step = 1 if SOAK or transcript.dialect in BOTH else 7
    for number, event in enumerate(transcript.stream):
        before = transcript.stream[number - 1] if number else b""
        after = b"".join(transcript.stream[number + 1 : number + 2])
        datas = [each.data for each in decoder().iter_bytes(iter([before + event + after]))]
        assert len(datas) == bool(before) + 1 + bool(after)
        for place in range(0, len(event), step):
            pieces = iter([before + event[:place], event[place:] + after])
            assert [each.data for each in decoder().iter_bytes(pieces)] == datas


@pytest.mark.parametrize("transcript", WHOLE, ids=lambda transcript: transcript.name)
def test_no_cut_between_two_bytes_changes_the_message(transcript: Transcript) -> None:
    """Wherever it is cut, the message is the body's: every place in the long form, else a few."""
    reader, stream = READERS[transcript.dialect], b"".join(transcript.stream)
    step = 1 if SOAK else 997
    for place in range(1, len(stream), step):
        pieces = [stream[:place], stream[place:]]
        assert reader.stream(pieces) == expected(transcript)
        assert reader.stream_async(pieces) == expected(transcript)


@pytest.mark.parametrize("transcript", BROKEN, ids=lambda transcript: transcript.name)
def test_failed_reply_raises_in_the_sdk_wherever_it_is_cut(transcript: Transcript) -> None:
    """Sync and async, a reply that fails after its 200 never looks complete."""
    reader, stream = READERS[transcript.dialect], b"".join(transcript.stream)
    error = anthropic.APIError if transcript.dialect is Dialect.ANTHROPIC else openai.APIError
    step = 1 if SOAK else 199
    for place in range(1, len(stream), step):
        for read in (reader.stream, reader.stream_async):
            with pytest.raises(error, match="Overloaded"):
                read([stream[:place], stream[place:]])
