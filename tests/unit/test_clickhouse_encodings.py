"""Content encodings of the embedded ClickHouse: round trips and bounds."""

import pytest

from infra.clickhouse.front import compression

BODY = b"usage " * 1_000


@pytest.mark.parametrize("encoding", compression.SPOKEN)
def test_each_spoken_encoding_comes_back(encoding: str) -> None:
    """What is compressed decompresses to the same bytes, two frames in a row included."""
    packed = compression.compress(BODY, encoding)
    assert len(packed) < len(BODY)
    assert compression.decompress(packed, encoding, len(BODY)) == BODY
    if encoding != "deflate":
        assert compression.decompress(packed * 2, encoding, 2 * len(BODY)) == BODY * 2


@pytest.mark.parametrize("encoding", compression.SPOKEN)
def test_bombs_cuts_and_noise_are_errors(encoding: str) -> None:
    """Bodies that grow too large, end early or are noise raise instead of being taken."""
    packed = compression.compress(BODY, encoding)
    with pytest.raises(compression.EncodingError, match="larger"):
        compression.decompress(packed, encoding, len(BODY) - 1)
    for bad in (packed[:-9], b"\x00noise" * 9):
        with pytest.raises(compression.EncodingError):
            compression.decompress(bad, encoding, len(BODY))


def test_unknown_encodings_are_named() -> None:
    """An encoding that is not spoken is refused with the list of those that are."""
    with pytest.raises(compression.EncodingError, match=r"br.*spoken: lz4"):
        compression.decompress(b"x", "br", 10)
    assert compression.choose("br, gzip;q=0.5") == "gzip"
    assert compression.choose("br") is None
