"""What engines refuse of a continued reply where they cannot carry it over."""

import pytest

from engine_workers.engine.port import EngineRejected
from engine_workers.engine.refusals import refuse_unservable
from tests.contract.engine_suite import GREEDY, request


def test_an_engine_that_cannot_continue() -> None:
    """Where the runner has no place for emitted tokens, only fresh runs are served."""
    asked = request([5], GREEDY)
    refuse_unservable(asked, (), vocab_size=10, context_tokens=100, continues=False)
    with pytest.raises(EngineRejected, match="emitted: this engine cannot continue"):
        refuse_unservable(asked, (6,), vocab_size=10, context_tokens=100, continues=False)
