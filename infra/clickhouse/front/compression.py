"""Content encodings of the HTTP interface: what comes in is bounded, what goes out is asked for.
Pure.

lz4 and zstd come with clickhouse-connect; brotli, bz2, xz and snappy are not spoken.
"""

import gzip
import zlib
from collections.abc import Callable
from typing import Any

import lz4.frame
from backports import zstd

SPOKEN = ("lz4", "zstd", "gzip", "deflate")


class EncodingError(ValueError):
    """A body that is badly compressed, too large, or in an encoding that is not spoken."""


def decompress(body: bytes, encoding: str, bytes_max: int) -> bytes:
    """Return the plain body; raises EncodingError, before taking more memory than `bytes_max`."""
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return body
    if name not in SPOKEN:
        raise EncodingError(f"Unknown compression method: {encoding}; spoken: {', '.join(SPOKEN)}")
    plain, rest = bytearray(), body
    try:
        while rest:
            reader = _reader(name)
            plain += reader.decompress(rest, bytes_max + 1 - len(plain))
            if len(plain) > bytes_max:
                raise EncodingError(f"body is larger than {bytes_max} bytes when decompressed")
            if not reader.eof:
                raise EncodingError(f"{name} body ends too early")
            rest = reader.unused_data or b""
    except (zlib.error, zstd.ZstdError, RuntimeError) as error:
        raise EncodingError(f"bad {name} body: {error}") from error
    return bytes(plain)


def choose(accepted: str) -> str | None:
    """Return the first encoding we speak of an Accept-Encoding header, in ClickHouse's order."""
    offered = {part.split(";")[0].strip().lower() for part in accepted.split(",")}
    return next((name for name in SPOKEN if name in offered), None)


def compress(body: bytes, encoding: str) -> bytes:
    """Return the body in one of the spoken encodings."""
    writers: dict[str, Callable[[bytes], bytes]] = {
        "lz4": lz4.frame.compress,
        "zstd": zstd.compress,
        "gzip": lambda plain: gzip.compress(plain, 3, mtime=0),
        "deflate": lambda plain: zlib.compress(plain, 3),
    }
    return writers[encoding](body)


def _reader(name: str) -> Any:
    if name == "lz4":
        return lz4.frame.LZ4FrameDecompressor()
    if name == "zstd":
        return zstd.ZstdDecompressor()
    return zlib.decompressobj(31 if name == "gzip" else 15)
