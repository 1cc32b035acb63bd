"""What holds for every test: one module's changes of the environment end with it."""

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def own_environment() -> Iterator[None]:
    """Take back what a module sets: an engine's variables would reach later modules' processes."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
