"""How output tokens of an earlier attempt travel through vLLM to whoever keeps state by request.

Owns the name under which they lie in a request's sampling parameters, the one thing that vLLM hands
unchanged to its scheduler and its workers, in whichever process. Imports nothing heavy.
"""

from collections.abc import Sequence
from typing import Any

_KEY = "millstream_emitted_token_ids"


def carrying(emitted: Sequence[int]) -> dict[str, Any] | None:
    """Return `SamplingParams.extra_args` that carry these tokens; None where there are none."""
    return {_KEY: list(emitted)} if emitted else None


def carried_by(sampling_params: Any) -> list[int]:
    """Return the tokens that a request's sampling parameters carry."""
    extra_args = getattr(sampling_params, "extra_args", None) or {}
    return list(extra_args.get(_KEY, ()))
