"""Starts the fuzz targets with the session: most tests before theirs leave a core idle."""

import os

import pytest

from tests.fuzz.campaign import Campaign

SECONDS = 600 if os.environ.get("MILLSTREAM_SOAK") == "1" else 60
_RUNNING = pytest.StashKey[Campaign]()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start them where their test is among those to run."""
    wanted = any("campaign" in getattr(item, "fixturenames", ()) for item in session.items)
    if wanted and not session.config.option.collectonly:
        session.config.stash[_RUNNING] = Campaign(SECONDS)


def pytest_unconfigure(config: pytest.Config) -> None:
    """End those that a broken off session leaves."""
    if _RUNNING in config.stash:
        config.stash[_RUNNING].close()


@pytest.fixture(scope="session")
def campaign(pytestconfig: pytest.Config) -> Campaign:
    """Return the runs of all targets."""
    return pytestconfig.stash[_RUNNING]
