"""Errors of the gateway, and the one table of what HTTP makes of each.

    GatewayError
      Refused              before any work; nothing changed
        NotAuthenticated   no key, unknown key, revoked key
        NotPermitted       the key may not do this
        PathUnknown        no such path
        MethodNotAllowed   not with this method
        ModelUnknown       no such model here
        ReplyUnknown       no such reply, not of this org, or not kept any more
        BatchUnknown       no such batch or results, not of this workspace, or not kept any more
        FileUnknown        no such file, not of this workspace, or not kept any more
        KeyReused          the idempotency key belongs to another request
        BodyTooLarge       more bytes than the limit
        BodyTooSlow        the body did not arrive in time
        EventTooLarge      the request does not fit the log
        LimitReached       a limit of the org: come back when told
        QuotaExhausted     the org's tokens of this month are used: do not come back
        Overloaded         no room, no worker, or not ready yet: come back
        LogAway            the log does not answer: come back
      ClientGone           the client left or does not read; nobody is answered
      ReplyBroken          the reply ended or was lost without its terminal (late, deadline, failed)
        HandoverFailed     nobody knows whether the request reached the log; it was closed
        CutByDrain         this gateway stops and gave it its time: come back

`schemas.dialects.canonical.InvalidRequest` carries its own status.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from schemas import limits
from schemas.fold import End
from schemas.replies import CloseReason

__all__ = [
    "BatchUnknown",
    "BodyTooLarge",
    "BodyTooSlow",
    "ClientGone",
    "CutByDrain",
    "EventTooLarge",
    "FileUnknown",
    "GatewayError",
    "HandoverFailed",
    "KeyReused",
    "LimitReached",
    "LogAway",
    "MethodNotAllowed",
    "ModelUnknown",
    "NotAuthenticated",
    "NotPermitted",
    "Overloaded",
    "PathUnknown",
    "QuotaExhausted",
    "Refused",
    "ReplyBroken",
    "ReplyUnknown",
    "Shown",
    "broken_by",
    "show",
]


class GatewayError(Exception):
    """Base of all errors that the gateway raises on purpose."""


class Refused(GatewayError):
    """The request was refused before any work; nothing changed."""


class NotAuthenticated(Refused):
    """No key, or one that does not authenticate."""


class NotPermitted(Refused):
    """The key is good, but not for this."""


class PathUnknown(Refused):
    """There is no such path."""


class MethodNotAllowed(Refused):
    """The path exists, with another method."""

    def __init__(self, message: str, allow: str) -> None:
        super().__init__(message)
        self.allow = allow


class ModelUnknown(Refused):
    """The model named is not served here."""


class ReplyUnknown(Refused):
    """There is no such reply for this org, or the log does not keep it any more."""


class LimitReached(Refused):
    """A rate limit of the org does not let the request pass now."""

    def __init__(self, message: str, kind: str, retry_after_s: int | None) -> None:
        """Take the words, OpenAI's `error.type`, and when to come back; None = it never passes."""
        super().__init__(message)
        self.kind, self.retry_after_s = kind, retry_after_s


class QuotaExhausted(Refused):
    """The org's tokens of this month are used up."""


class BatchUnknown(Refused):
    """There is no such batch in this workspace, or no results of it, yet or any more."""


class FileUnknown(Refused):
    """There is no such file in this workspace, or it is not kept any more."""


class KeyReused(Refused):
    """The idempotency key was used with another request."""


class BodyTooLarge(Refused):
    """The body has more bytes than the limit."""


class BodyTooSlow(Refused):
    """The body did not arrive within its time."""


class EventTooLarge(Refused):
    """The request would not fit the log."""


class Overloaded(Refused):
    """There is no room or no worker now, or the gateway is not ready: the client comes back."""


class LogAway(Refused):
    """The log has not answered for too long: nothing can be begun now."""


class ClientGone(GatewayError):
    """The client left, or reads so slowly that it was cut."""


class ReplyBroken(GatewayError):
    """A reply that will not get its terminal: closed for `reason`, or not to be followed."""

    def __init__(self, reason: CloseReason, message: str | None = None) -> None:
        super().__init__(message or _REASONS[reason])
        self.reason = reason


class HandoverFailed(ReplyBroken):
    """The log did not say whether it took the request, which was closed to be sure."""


class CutByDrain(ReplyBroken):
    """This gateway stops, and the reply took longer than it waits: another one takes a repeat."""

    def __init__(self, message: str) -> None:
        super().__init__(CloseReason.FAILED, message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What a client gets to see of an error."""

    status: int
    message: str
    code: str | None = None
    """OpenAI's `error.code`."""
    retry_after_s: int | None = None
    param: str | None = None
    kind: str | None = None
    """OpenAI's `error.type`, where it is not the status's."""
    details_code: str | None = None
    """Anthropic's `error.details.error_code`."""
    may_retry: bool = True
    """False where SDKs would try again by themselves, in vain."""


_REASONS: Mapping[CloseReason, str] = {
    CloseReason.LATE: "Overloaded: no worker took the request in time",
    CloseReason.DEADLINE: "The request did not finish before its deadline",
    CloseReason.FAILED: "The reply failed",
    CloseReason.CANCELLED: "The request was cancelled",
    CloseReason.ABANDONED: "The request was abandoned",
}

_STATUS: Mapping[type[GatewayError], tuple[int, str | None]] = {
    NotAuthenticated: (401, "invalid_api_key"),
    NotPermitted: (403, "permission_denied"),
    PathUnknown: (404, None),
    ModelUnknown: (404, "model_not_found"),
    ReplyUnknown: (404, "reply_not_found"),
    BatchUnknown: (404, "batch_not_found"),
    FileUnknown: (404, "file_not_found"),
    KeyReused: (422, "idempotency_key_reused"),
    MethodNotAllowed: (405, None),
    BodyTooSlow: (408, None),
    BodyTooLarge: (413, "request_too_large"),
    EventTooLarge: (413, "request_too_large"),
    ClientGone: (499, None),
    LogAway: (503, "service_unavailable"),
    HandoverFailed: (503, "service_unavailable"),
    Overloaded: (529, "overloaded"),
    CutByDrain: (529, "overloaded"),
}

_CLOSED_STATUS: Mapping[CloseReason, int] = {
    CloseReason.LATE: 529,
    CloseReason.DEADLINE: 504,
    CloseReason.FAILED: 500,
    CloseReason.ABANDONED: 500,
    CloseReason.CANCELLED: 410,
}

_RETRIED = (503, 529)

_PARAM: Mapping[type[GatewayError], str] = {ModelUnknown: "model"}


def show(error: Exception) -> Shown:
    """Return status and words for an error; whatever is not ours is a plain 500 without details."""
    code: str | None
    if type(error) is ReplyBroken:
        status, code = _CLOSED_STATUS[error.reason], error.reason.value
    elif isinstance(error, (LimitReached, QuotaExhausted)):
        return _limited(error)
    elif isinstance(error, GatewayError):
        status, code = _STATUS[type(error)]
    else:
        return Shown(status=500, message="Internal server error")
    return Shown(
        status=status,
        message=str(error),
        code=code,
        retry_after_s=limits.RETRY_AFTER_S if status in _RETRIED else None,
        param=_PARAM.get(type(error)),
    )


def _limited(error: LimitReached | QuotaExhausted) -> Shown:
    if isinstance(error, QuotaExhausted):
        return Shown(
            status=429,
            message=str(error),
            code="insufficient_quota",
            kind="insufficient_quota",
            details_code="enforced_spend_limit_reached",
            may_retry=False,
        )
    return Shown(
        status=429,
        message=str(error),
        code="rate_limit_exceeded",
        kind=error.kind,
        retry_after_s=error.retry_after_s,
        may_retry=error.retry_after_s is not None,
    )


def broken_by(end: End) -> ReplyBroken:
    """Return the error of a reply that was closed instead of finished."""
    assert end.close_reason is not None, "a terminal is no error"
    return ReplyBroken(end.close_reason, end.message)
