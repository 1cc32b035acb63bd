"""From accepted token ids to what the client is sent, stream or body, per dialect."""

from schemas.assembler.reply import Assembler, TokenDecoder
from schemas.assembler.sse import SseEvent

__all__ = ["Assembler", "SseEvent", "TokenDecoder"]
