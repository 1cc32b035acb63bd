"""kill -9 of each process in turn while requests run: nothing acknowledged is lost or doubled,
nothing hangs, nothing that was cut looks complete."""

import asyncio
import time
from dataclasses import dataclass

import psutil
import pytest

from tests.integration.load import CUT, HANG_S, Load, Reply, ask, sdks
from tests.integration.platform import DEADLINE_S, SOAK, Platform, eventually

CLIENTS = 24 if SOAK else 8
ROUNDS = 5 if SOAK else 1
BEFORE_S, AFTER_S = 1.0, 1.5
BACK_WITHIN_S = 60.0
CHILDREN = ("worker-0", "gateway-0", "metering", "stream-app", "clickhouse", "kafka-0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What requests came to over one kill."""

    load: Load
    back_after_s: float
    back_s: float
    """When all was ready again, on the monotonic clock."""


@pytest.mark.parametrize("name", CHILDREN)
def test_kill_of_a_process_loses_nothing(platform: Platform, name: str) -> None:
    """It is restarted, requests after recovery succeed, cut ones raise by their deadline, every
    finished reply is metered once and the audit agrees."""
    for _ in range(ROUNDS):
        outcome = asyncio.run(_kill_under_load(platform, name))
        load = outcome.load
        print(
            f"{name}: back after {outcome.back_after_s:.1f} s, {len(load.finished)} finished, "
            f"{len(load.failed)} cut: {sorted({type(f.error).__name__ for f in load.failed})}"
        )
        assert f"{name} ended (signal SIGKILL); starting it again" in platform.output
        assert f"{name} is back" in platform.output
        assert [f for f in load.failed if f.started_s > outcome.back_s] == []
        assert any(reply.ended_s > outcome.back_s for reply in load.finished)
        _check_metered(platform, load)
        platform.check_audit()


def test_kill_of_the_supervisor_is_cleaned_up_by_the_next_up(platform: Platform) -> None:
    """After kill -9 of `millstream up` the next one ends the orphans, starts, and nothing
    acknowledged is lost."""

    async def scenario() -> Load:
        assert platform.child is not None
        async with sdks(platform.url, platform.key) as clients:
            load = Load(clients)
            running = [asyncio.create_task(load.send_for_ever()) for _ in range(CLIENTS)]
            await asyncio.sleep(BEFORE_S)
            platform.child.kill()
            await asyncio.to_thread(platform.child.wait)
            await asyncio.to_thread(platform.up)
            load.stop()
            await asyncio.gather(*running)
        return load

    load = asyncio.run(scenario())
    print(f"ready {platform.ready_after_s:.1f} s after the next up")
    assert "ending what an earlier run left behind" in platform.output
    assert load.finished
    _check_metered(platform, load)
    again = asyncio.run(_some(platform))
    assert again.failed == []
    _check_metered(platform, again)
    platform.check_audit()


def test_kill_of_the_supervisor_is_cleaned_up_by_down(platform: Platform) -> None:
    """After kill -9 of `millstream up`, `down` ends everything that it left; a repeat finds
    nothing, and the next start loses nothing."""
    assert platform.child is not None
    before = asyncio.run(_some(platform))
    assert before.failed == []
    processes = platform.tree()
    platform.child.kill()
    platform.child.wait()
    time.sleep(0.3)  # long enough to be told of the death, too short to drain
    done = platform.command("down")
    assert done.returncode == 0, done.stderr
    assert "ending what an earlier run left behind: " in done.stdout
    eventually(lambda: not any(map(_runs, processes)), 1.0, "all have ended")
    assert "no platform runs on" in platform.command("status").stderr
    again = platform.command("down")
    assert again.returncode == 0 and "no platform runs on" in again.stdout
    platform.up()
    _check_metered(platform, before)
    platform.check_audit()


def test_streams_over_a_dead_worker_go_on(platform: Platform) -> None:
    """A worker's kill -9 costs running streams a pause: in both dialects the text is that of an
    undisturbed run with the same seed, and each is metered once."""
    fixed: dict[str, object] = {"seed": 7, "ignore_eos": True}

    async def scenario() -> float:
        async with sdks(platform.url, platform.key) as clients:

            def streams() -> list[asyncio.Task[Reply]]:
                return [
                    asyncio.create_task(
                        ask(clients, dialect, "Go on", stream=True, max_tokens=700, **fixed)
                    )
                    for dialect in ("anthropic", "openai")
                ]

            undisturbed = await asyncio.gather(*streams())
            running = streams()
            await asyncio.to_thread(eventually, lambda: platform.engine_load() > 1, 5.0, "both run")
            await asyncio.sleep(0.5)
            killed = await asyncio.to_thread(platform.kill, "worker-0")
            began_s = time.monotonic()
            disturbed = await asyncio.gather(*running)
            took_s = time.monotonic() - began_s
            assert [reply.text for reply in disturbed] == [reply.text for reply in undisturbed]
            assert [reply.output_tokens for reply in disturbed] == [700, 700]
            await asyncio.to_thread(platform.wait_back, "worker-0", killed, BACK_WITHIN_S)
            return took_s

    took_s = asyncio.run(scenario())
    print(f"complete {took_s:.1f} s after the kill")
    platform.check_audit()


def test_streams_of_a_dead_gateway_raise(platform: Platform) -> None:
    """Replies whose gateway dies mid-stream end in an error, never cleanly, in both dialects."""

    async def scenario() -> float:
        async with sdks(platform.url, platform.key) as clients:
            streams = [
                asyncio.create_task(
                    ask(clients, dialect, "Go on", stream=True, max_tokens=2_500, ignore_eos=True)
                )
                for dialect in ("anthropic", "openai")
            ]
            await asyncio.to_thread(eventually, lambda: platform.engine_load() > 1, 5.0, "both run")
            await asyncio.sleep(0.5)
            killed = await asyncio.to_thread(platform.kill, "gateway-0")
            began_s = time.monotonic()
            for stream in streams:
                with pytest.raises(CUT):
                    await stream
            took_s = time.monotonic() - began_s
            await asyncio.to_thread(platform.wait_back, "gateway-0", killed, BACK_WITHIN_S)
            return took_s

    took_s = asyncio.run(scenario())
    print(f"errors {took_s:.1f} s after the kill")
    assert took_s < DEADLINE_S
    eventually(lambda: platform.engine_load() == 0, HANG_S, "the engine has dropped them")
    assert asyncio.run(_some(platform)).failed == []
    platform.check_audit()


def _runs(process: psutil.Process) -> bool:
    """Tell whether a process is there and no zombie that nobody has reaped yet."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


async def _kill_under_load(platform: Platform, name: str) -> Outcome:
    async with sdks(platform.url, platform.key) as clients:
        load = Load(clients)
        running = [asyncio.create_task(load.send_for_ever()) for _ in range(CLIENTS)]
        await asyncio.sleep(BEFORE_S)
        killed = await asyncio.to_thread(platform.kill, name)
        back_after_s = await asyncio.to_thread(platform.wait_back, name, killed, BACK_WITHIN_S)
        back_s = time.monotonic()
        await asyncio.sleep(AFTER_S)
        load.stop()
        await asyncio.gather(*running)
    return Outcome(load=load, back_after_s=back_after_s, back_s=back_s)


async def _some(platform: Platform) -> Load:
    async with sdks(platform.url, platform.key) as clients:
        load = Load(clients)
        await asyncio.gather(*(load.send_next() for _ in range(CLIENTS)))
        return load


def _check_metered(platform: Platform, load: Load) -> None:
    """Check that every finished reply has its one row with the tokens that the client was told."""
    told = {
        reply.request_id: (reply.input_tokens, reply.output_tokens, None) for reply in load.finished
    }
    eventually(lambda: platform.usage_of(list(told)) == told, 20.0, "every finished reply's row")
