"""Laws of the assembler, over drawn texts, stop strings, seams and ends."""

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from schemas.assembler import Assembler, SseEvent
from schemas.replies import ChoiceTokens, StageTimes, Stop, StopReason, Terminal
from schemas.requests import ReplyHeader
from tests.assembler_cases import (
    ANTHROPIC,
    OPENAI,
    PIECES,
    REPLY_IDS,
    ByteDecoder,
    assembler,
    body_text,
    engine_stop,
    run_whole,
    streamed_text,
    token_ids,
)

BOUNDED = settings(max_examples=150, deadline=None)
# Few letters, so that stop strings occur, nearly occur and overlap; some of several bytes.
STOPS = st.lists(st.text(alphabet="aaabé🙂", min_size=1, max_size=5), max_size=3, unique=True)
HEADERS = st.sampled_from([ANTHROPIC, OPENAI, replace(OPENAI, include_usage=False)])
LETTERS = st.sampled_from([*token_ids("aab"), *range(256, 257 + len(PIECES))])
BYTES = st.lists(st.integers(0, 256) | LETTERS, max_size=40)
TEXTS = st.lists(LETTERS, max_size=30)
ENDS = st.sampled_from([StopReason.END, StopReason.LENGTH, StopReason.REFUSAL])


def cut(ids: Sequence[int], seams: Sequence[int]) -> list[Sequence[int]]:
    """Cut tokens into runs."""
    places = sorted({min(seam, len(ids)) for seam in seams} | {0, len(ids)})
    return [ids[first:last] for first, last in pairwise(places)]


def terminal_of(stop: Stop, ids: Sequence[int]) -> Terminal:
    """Return the end of a reply of one choice with these tokens."""
    return Terminal(
        stops=(stop,),
        stages=StageTimes(taken_ms=1, started_ms=1, first_token_ms=1, finished_ms=1),
        tokens=(ChoiceTokens(segment=0, choice=0, token_ids=tuple(ids)),),
    )


@BOUNDED
@given(HEADERS, BYTES, STOPS, st.lists(st.integers(0, 40), max_size=6), ENDS)
def test_events_do_not_depend_on_how_records_were_cut(
    header: ReplyHeader, ids: list[int], stops: list[str], seams: list[int], reason: StopReason
) -> None:
    """One record, many records, one token each: the same bytes with the same cursors."""
    header, stop = replace(header, stop=tuple(stops)), Stop(reason=reason)
    whole = run_whole(header, [ids], stop)
    assert run_whole(header, cut(ids, seams), stop) == whole
    assert run_whole(header, [[token_id] for token_id in ids], stop) == whole


@BOUNDED
@given(HEADERS, BYTES, STOPS, ENDS)
def test_stream_adds_up_to_the_body(
    header: ReplyHeader, ids: list[int], stops: list[str], reason: StopReason
) -> None:
    """The deltas of the stream are the text of the body, whatever bytes the model makes."""
    events, body = run_whole(replace(header, stop=tuple(stops)), [ids], Stop(reason=reason))
    assert streamed_text(events) == body_text(body)


@BOUNDED
@given(HEADERS, BYTES, STOPS, ENDS, st.booleans())
def test_a_body_alone_is_the_body_of_the_stream(
    header: ReplyHeader, ids: list[int], stops: list[str], reason: StopReason, at_once: bool
) -> None:
    """Who is sent no event gets the same body, whether or not all text is known at once."""
    header, stop = replace(header, stop=tuple(stops)), Stop(reason=reason)

    def text_of(token_ids: Sequence[int]) -> str | None:
        decoder = ByteDecoder()
        return "".join(map(decoder.step, token_ids)) if at_once else None

    _, body = run_whole(header, [ids], stop)
    whole = Assembler(header, REPLY_IDS[header.dialect], ByteDecoder, text_of=text_of)
    assert whole.whole(terminal_of(stop, ids)) == body


@BOUNDED
@given(HEADERS, TEXTS, STOPS, st.integers(0, 20))
def test_text_is_the_engines_and_no_stop_string_leaks(
    header: ReplyHeader, drawn: list[int], stops: list[str], min_tokens: int
) -> None:
    """What was sent is at any token a beginning of the engine's text, in the end all of it."""
    ids, stop, expected = engine_stop(drawn, stops, min_tokens)
    reply = assembler(replace(header, stop=tuple(stops)))
    events: list[SseEvent] = list(reply.opening())
    for token_id in ids:
        events.extend(reply.feed(0, [token_id]))
        assert expected.startswith(streamed_text(events))
    events.extend(reply.finish((stop,)))
    assert streamed_text(events) == body_text(reply.body()) == expected


@BOUNDED
@given(HEADERS, BYTES, STOPS)
def test_cursors_rise_and_are_unique(header: ReplyHeader, ids: list[int], stops: list[str]) -> None:
    """A client can name any event; cursors compare as pairs of numbers in the order sent."""
    events, _ = run_whole(replace(header, stop=tuple(stops)), [ids])
    places = [tuple(map(int, event.cursor.split("-"))) for event in events]
    assert places == sorted(set(places))


@BOUNDED
@given(HEADERS, st.text(max_size=20))
def test_characters_of_several_tokens_survive_every_seam(header: ReplyHeader, text: str) -> None:
    """A character whose bytes lie in two records is sent once, whole."""
    text = text.encode("utf-8", "ignore").decode()
    ids = token_ids(text)
    for seam in range(len(ids) + 1):
        events, _ = run_whole(header, [ids[:seam], ids[seam:]])
        assert streamed_text(events) == text
