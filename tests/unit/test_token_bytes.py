"""The bytes of a token, from its spelling in each kind of vocabulary."""

import pytest

from infra.token_bytes import spelling_reader


@pytest.mark.parametrize(
    ("decoder", "spelling", "expected"),
    [
        ('{"type":"ByteLevel"}', "Ġhi", b" hi"),
        ('{"type":"ByteLevel"}', "Ċ", b"\n"),
        ('{"type":"ByteLevel"}', "Ã", b"\xc3"),
        ('{"type":"ByteLevel"}', "Ł", b"\x9f"),
        ('{"type":"ByteLevel"}', "▁hi", "▁hi".encode()),
        ('{"decoders":[{"type":"ByteFallback"}]}', "<0xE2>", b"\xe2"),
        ('{"decoders":[{"type":"ByteFallback"}]}', "▁hi", b" hi"),
        ("", "<0xE2>", b"<0xE2>"),
    ],
)
def test_spellings_are_read_as_the_decoder_would(
    decoder: str, spelling: str, expected: bytes
) -> None:
    """Byte-level characters, fallback bytes and word spaces become what they stand for."""
    assert spelling_reader(decoder)(spelling) == expected


def test_each_byte_has_its_own_spelling() -> None:
    """The byte-level table is the one that vocabularies are made with."""
    from tokenizers import pre_tokenizers

    read = spelling_reader('"ByteLevel"')
    spelt = {read(character) for character in pre_tokenizers.ByteLevel.alphabet()}
    assert spelt == {bytes([byte]) for byte in range(256)}
