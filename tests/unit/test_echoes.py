"""What a worker wrote is known when it comes back, once, within bounds."""

from engine_workers.echoes import Echoes
from schemas import limits
from schemas.codec import decode, encode
from schemas.replies import Delta, ReplyRecord, Start, entry_of, fact_of
from tests.builders import delta, start


def test_an_echo_says_what_its_bytes_say() -> None:
    """It is what anybody else decodes, and is forgotten once it was read."""
    facts: tuple[Start | Delta, ...] = (start(), delta(0, 5), delta(1, 6))
    value = encode(ReplyRecord(entries=tuple(entry_of(fact) for fact in facts)))
    echoes = Echoes()
    echoes.wrote(value, facts)
    read = echoes.read(bytes(bytearray(value)))
    assert read == tuple(fact_of(entry) for entry in decode(value, ReplyRecord).entries)
    assert echoes.read(value) is None, "a second landing is decoded"


def test_the_newest_are_kept_within_a_bound() -> None:
    """Records that never land must not fill the memory; newer ones take their room."""
    echoes = Echoes()
    size = limits.ECHO_BYTES_MAX // 4
    values = [bytes([number]) * size for number in range(6)]
    for value in values:
        echoes.wrote(value, (start(),))
        echoes.wrote(value, (start(),))  # a repeated send of the same bytes is one
    assert [echoes.read(value) is not None for value in values] == [False] * 2 + [True] * 4
    echoes.wrote(b"x" * (limits.ECHO_BYTES_MAX + 1), (start(),))
    assert echoes.read(b"x" * (limits.ECHO_BYTES_MAX + 1)) is None
    for number in range(limits.ECHO_RECORDS_MAX + 1):
        echoes.wrote(number.to_bytes(8), (start(),))
    assert echoes.read((0).to_bytes(8)) is None
    assert echoes.read((1).to_bytes(8)) is not None
