"""Signatures of thinking blocks."""

from schemas.thinking_signature import sign_thinking, verify_thinking


def test_signature_belongs_to_one_text_and_one_key() -> None:
    """A text that was changed, or signed by another platform, is not ours."""
    signature = sign_thinking("I see", b"key")
    assert verify_thinking("I see", signature, b"key")
    assert not verify_thinking("I saw", signature, b"key")
    assert not verify_thinking("I see", signature, b"other")


def test_any_string_can_be_checked() -> None:
    """What a client sends as a signature or as thinking raises nothing."""
    for signature in ("", "=", "é", "a", "YQ==", "\ud800"):
        assert not verify_thinking("x", signature, b"key")
    assert not verify_thinking("\ud800", "YQ==", b"key")
