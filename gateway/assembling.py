"""The assembler of a followed reply, for whoever shows it: a response, or a batch's result."""

from gateway.live_reply import LiveReply
from gateway.prompts import Prompts
from schemas.assembler import Assembler
from schemas.ids import RequestId, show_reply_id
from schemas.thinking_signature import sign_thinking

__all__ = ["assembler_of"]


def assembler_of(reply: LiveReply, prompts: Prompts, locator_key: bytes) -> Assembler:
    """Return what makes a reply's events or body from its tokens."""
    request = reply.request
    reply_id = show_reply_id(
        request.header.dialect.value,
        request.locator,
        RequestId(request.request_id),
        request.identity.org,
        request.identity.workspace,
        locator_key,
    )
    return Assembler(
        request.header,
        reply_id,
        prompts.decoder,
        sign=lambda thinking: sign_thinking(thinking, locator_key),
        token_text=prompts.token_text,
        text_of=prompts.text_of,
    )
