"""The platforms that the end-to-end tests share: one with each engine, one with the scripted
engine, two gateways and two workers, and one with two workers with vLLM.

At most one of them runs at a time, so that they do not take each other's cores.
"""

import gc
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.platform import DEADLINE_S, Platform

SETTINGS = {
    "MILLSTREAM_DEADLINE_MS": str(int(DEADLINE_S * 1000)),
    # Slow enough that a client can leave in the middle of a prefill.
    "MILLSTREAM_SCRIPTED_PREFILL_TOKENS_PER_S": "2000",
}
PAIR = {
    "MILLSTREAM_GATEWAYS": "2",
    "MILLSTREAM_WORKERS": "2",
    # Shorter than some replies, so that they move when a worker stops.
    "MILLSTREAM_WORKER_DRAIN_MS": "1000",
    "MILLSTREAM_DEADLINE_MS": "60000",
}
VLLM_PAIR = {
    "MILLSTREAM_WORKERS": "2",
    # Both share the machine's cores, and a killed one loads anew beside the other.
    "MILLSTREAM_DEADLINE_MS": "120000",
}

TRIO = {
    "MILLSTREAM_BROKERS": "3",
    "MILLSTREAM_GATEWAYS": "2",
    "MILLSTREAM_WORKERS": "2",
    # Every worker starts several times over a request that kills them, beside three brokers.
    "MILLSTREAM_DEADLINE_MS": "120000",
    # The engine's process ends over a prompt with this token, of the word "arsenic" only.
    "MILLSTREAM_SCRIPTED_CRASH_TOKEN_ID": "17604",
}

PLATFORMS = ("platform", "quick_platform", "pair", "trio", "vllm_platform", "vllm_pair")
HERE = Path(__file__).resolve().parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests of one platform one after the other: each start of another takes seconds."""
    places = [place for place, item in enumerate(items) if HERE in item.path.parents]
    ordered = sorted((items[place] for place in places), key=_platform_order)
    for place, item in zip(places, ordered, strict=True):
        items[place] = item


def _platform_order(item: pytest.Item) -> int:
    names = getattr(item, "fixturenames", ())
    return next((n for n, name in enumerate(PLATFORMS, 1) if name in names), 0)


@pytest.fixture(scope="module", autouse=True)
def own_garbage() -> None:
    """Never look for garbage in what earlier modules loaded: with torch among it that takes this
    process, which holds the clients, a second that they would count as the platform's."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def platforms() -> Iterator[dict[str, Platform]]:
    """Yield the platforms, none of them started yet; end them with the session."""
    with tempfile.TemporaryDirectory(prefix="millstream-") as folder:
        made = {
            engine: Platform(Path(folder) / engine, engine, dict(SETTINGS))
            for engine in ("scripted", "vllm")
        }
        made["pair"] = Platform(Path(folder) / "pair", "scripted", SETTINGS | PAIR)
        made["vllm pair"] = Platform(Path(folder) / "vllm-pair", "vllm", dict(VLLM_PAIR))
        made["quick"] = Platform(
            Path(folder) / "quick",
            "scripted",
            {"MILLSTREAM_SCRIPTED_STEP_MS": "0", "MILLSTREAM_CONTEXT_TOKENS": "512"},
        )
        made["trio"] = Platform(Path(folder) / "trio", "scripted", SETTINGS | TRIO)
        try:
            yield made
        finally:
            for platform in made.values():
                platform.end()


@pytest.fixture
def platform(platforms: dict[str, Platform]) -> Platform:
    """Return the running platform with the scripted engine."""
    return _running(platforms, "scripted")


@pytest.fixture
def vllm_platform(platforms: dict[str, Platform]) -> Platform:
    """Return the running platform with vLLM."""
    return _running(platforms, "vllm")


@pytest.fixture
def pair(platforms: dict[str, Platform]) -> Platform:
    """Return the running platform with two gateways and two workers."""
    return _running(platforms, "pair")


@pytest.fixture
def vllm_pair(platforms: dict[str, Platform]) -> Platform:
    """Return the running platform with two workers with vLLM."""
    return _running(platforms, "vllm pair")


@pytest.fixture
def quick_platform(platforms: dict[str, Platform]) -> Platform:
    """Return the running platform whose scripted engine loses no time and has a small context."""
    return _running(platforms, "quick")


@pytest.fixture
def trio(platforms: dict[str, Platform]) -> Platform:
    """Return the running platform with three brokers, two gateways and two workers."""
    return _running(platforms, "trio")


def _running(platforms: dict[str, Platform], name: str) -> Platform:
    for other_name, other in platforms.items():
        if other_name != name and other.runs:
            assert other.stop() == 0
    platform = platforms[name]
    if not platform.runs:
        platform.up(within_s=300)
    return platform
