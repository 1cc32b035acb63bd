"""The engine pump: commands in, outputs out, within credits."""

import threading

import pytest
from msgspec.structs import replace

from engine_workers.engine.port import EngineRequest, StepOutput
from engine_workers.engine.script import Script
from engine_workers.engine.scripted_engine import Model, ScriptedEngine
from engine_workers.pump import Abort, EnginePump, PumpFull, Rejection, Start
from infra.system import SystemClock
from schemas import limits
from schemas.requests import Sampling

RUN = EngineRequest(
    run_id="a",
    prompt_token_ids=(5, 6, 7),
    sampling=Sampling(max_tokens=4, ignore_eos=True),
    seed=1,
)


class ManualClock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.s = 100.0

    def now_ms(self) -> int:
        """Return the time in milliseconds."""
        return int(self.s * 1_000)

    def monotonic_s(self) -> float:
        """Return the time in seconds."""
        return self.s


class Delivered:
    """Keeps what the pump delivers."""

    def __init__(self) -> None:
        self.outputs: list[StepOutput] = []
        self.rejected: list[Rejection] = []
        self.calls = 0

    def __call__(self, outputs: list[StepOutput], rejected: list[Rejection]) -> None:
        self.calls += 1
        self.outputs += outputs
        self.rejected += rejected


def scripted() -> ScriptedEngine:
    """Return an engine that takes no time."""
    return ScriptedEngine(Script(vocab_size=100, eos_id=2))


def test_run_until_idle() -> None:
    """A started run is stepped turn by turn to its end, after which a turn finds nothing to do."""
    delivered = Delivered()
    pump = EnginePump(scripted(), delivered, ManualClock())
    pump.submit(Start(RUN))
    turns = 0
    while pump.run_once(0):
        turns += 1
    assert turns == 4
    assert len(delivered.outputs) == 4
    assert delivered.outputs[-1].stop is not None


def test_rejection_is_delivered() -> None:
    """A run that the engine refuses is delivered as rejected with its reason; others run on."""
    delivered = Delivered()
    pump = EnginePump(scripted(), delivered, ManualClock())
    pump.submit(Start(replace(RUN, run_id="bad", prompt_token_ids=())))
    pump.submit(Start(RUN))
    pump.run_once(0)
    assert [run_id for run_id, _ in delivered.rejected] == ["bad"]
    assert "prompt_token_ids" in delivered.rejected[0][1]
    assert [output.run_id for output in delivered.outputs] == ["a"]


def test_abort_before_the_step() -> None:
    """An abort taken in a turn leaves that turn's step nothing of the run."""
    delivered = Delivered()
    pump = EnginePump(scripted(), delivered, ManualClock())
    pump.submit(Start(RUN))
    pump.run_once(0)
    pump.submit(Abort("a"))
    assert pump.run_once(0)
    assert len(delivered.outputs) == 1
    assert not pump.run_once(0)


def test_credits_bound_deliveries() -> None:
    """Without credits the engine is not stepped; each one given back buys one delivery."""
    delivered = Delivered()
    pump = EnginePump(scripted(), delivered, ManualClock(), credits=2)
    pump.submit(Start(RUN))
    while pump.run_once(0):
        pass
    assert delivered.calls == 2
    pump.consumed()
    while pump.run_once(0):
        pass
    assert delivered.calls == 3


def test_commands_pass_without_credits() -> None:
    """An abort reaches the engine also while nothing may be delivered."""
    delivered = Delivered()
    engine = scripted()
    pump = EnginePump(engine, delivered, ManualClock(), credits=1)
    pump.submit(Start(RUN))
    pump.run_once(0)
    pump.submit(Abort("a"))
    pump.run_once(0)
    assert not engine.has_work()


def test_commands_are_bounded() -> None:
    """More commands than the limit are refused, not queued."""
    pump = EnginePump(scripted(), Delivered(), ManualClock())
    for number in range(limits.ENGINE_COMMANDS_MAX):
        pump.submit(Abort(str(number)))
    with pytest.raises(PumpFull):
        pump.submit(Abort("one too many"))


def test_idle_is_no_stall() -> None:
    """A command that comes after idle time shows no stall at first, then how long it waits."""
    clock = ManualClock()
    pump = EnginePump(scripted(), Delivered(), clock)
    clock.s += 1_000
    assert pump.stalled_ms() == 0
    pump.submit(Start(RUN))
    assert pump.stalled_ms() == 0
    clock.s += 31
    assert pump.stalled_ms() == 31_000
    pump.run_once(0)
    assert pump.stalled_ms() == 0


def test_a_step_that_hangs_shows() -> None:
    """While a step takes its time, another thread sees for how long."""
    clock = ManualClock()
    seen: list[int] = []

    def sleep(_seconds: float) -> None:
        clock.s += 40
        seen.append(pump.stalled_ms())

    engine = ScriptedEngine(Script(vocab_size=100, eos_id=2), Model(step_s=0.1), sleep=sleep)
    pump = EnginePump(engine, Delivered(), clock)
    pump.submit(Start(RUN))
    pump.run_once(0)
    assert seen == [40_000]
    assert pump.stalled_ms() == 0


def test_run_sleeps_and_wakes() -> None:
    """`run` sleeps while idle, wakes for commands and credits of another thread, and stops."""
    delivered = Delivered()
    pump = EnginePump(scripted(), delivered, SystemClock(), credits=1)
    done = threading.Event()

    def other_thread() -> None:
        pump.submit(Start(RUN))
        while not (delivered.outputs and delivered.outputs[-1].stop):
            if delivered.calls:
                pump.consumed()
        pump.stop()
        done.set()

    threading.Thread(target=other_thread).start()
    pump.run()
    assert done.wait(5)
    assert len(delivered.outputs) == 4
