"""The gateway's side of its grammar compilers: child processes that are started when needed.

Owns their number, their time and their end: one that takes too long, or dies, is replaced, and the
grammar that it had is refused; one that idles is sent home. Called by `grammars.py`.
"""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gateway.errors import Overloaded
from schemas import limits

__all__ = ["TOO_COMPLEX", "GrammarCompiler", "compiler_command"]

TOO_COMPLEX = "it is too complex to compile"
_COMPILERS_MAX = 2
"""One slow grammar does not hold up the others."""
_TRIES = 2
"""A grammar that two compilers died of is to blame."""


def compiler_command(model_path: Path, vocab_size: int, eos_id: int) -> tuple[str, ...]:
    """Return the command line of a compiler for one model."""
    arguments = (str(model_path), str(vocab_size), str(eos_id))
    return (sys.executable, "-m", "gateway.grammar_compiler", *arguments)


@dataclass(slots=True)
class _Compiler:
    """One child and what waits for it."""

    process: Process
    home: asyncio.TimerHandle | None = None


class GrammarCompiler:
    """Says what is wrong with grammars, within a bound of time."""

    def __init__(
        self,
        command: Callable[[], Sequence[str]],
        *,
        compile_ms: int = limits.GRAMMAR_COMPILE_MS,
        idle_ms: int = limits.GRAMMAR_COMPILER_IDLE_MS,
    ) -> None:
        """Take the command line, asked for at each start; raises Overloaded while unknown."""
        self._command = command
        self._compile_ms, self._idle_ms = compile_ms, idle_ms
        self._room = asyncio.Semaphore(_COMPILERS_MAX)
        self._idle: list[_Compiler] = []
        self._all: list[_Compiler] = []
        self._leaving: set[asyncio.Task[None]] = set()
        self._waiting = 0

    @property
    def pids(self) -> list[int]:
        """The children that run now."""
        return [compiler.process.pid for compiler in self._all]

    async def check(self, grammars: Sequence[str]) -> list[str | None]:
        """Return what is wrong with each grammar (JSON as in `RequestAccepted`), None = nothing.

        All of them share one bound of time.

        Raises: Overloaded where too many wait, or no compiler can be started.
        """
        if self._waiting >= limits.GRAMMARS_WAITING_MAX:
            raise Overloaded("Overloaded: too many new grammars at once")
        self._waiting += 1
        try:
            async with self._room:
                return await self._checked(grammars)
        finally:
            self._waiting -= 1

    async def stop(self) -> None:
        """End all children."""
        for compiler in tuple(self._all):
            await self._end(compiler)
        await asyncio.gather(*self._leaving)

    async def _checked(self, grammars: Sequence[str]) -> list[str | None]:
        """Ask a compiler; where it dies another is asked for the rest, once."""
        errors: list[str | None] = []
        for _ in range(_TRIES):
            compiler = self._idle.pop() if self._idle else await self._start()
            if compiler.home is not None:
                compiler.home.cancel()
            try:
                async with asyncio.timeout(self._compile_ms / 1000):
                    while len(errors) < len(grammars):
                        errors.append(await _ask(compiler.process, grammars[len(errors)]))
            except TimeoutError:
                break
            except (OSError, EOFError):
                continue  # it is gone: killed from outside, or by this grammar
            finally:
                if len(errors) < len(grammars):
                    await self._end(compiler)
            self._rest(compiler)
            return errors
        return errors + [TOO_COMPLEX] * (len(grammars) - len(errors))

    async def _start(self) -> _Compiler:
        """Start a compiler and wait until it is ready. Raises Overloaded."""
        # stderr stays the gateway's: what a dying compiler says belongs into its log.
        process = await asyncio.create_subprocess_exec(*self._command(), stdin=PIPE, stdout=PIPE)
        compiler = _Compiler(process)
        self._all.append(compiler)
        try:
            async with asyncio.timeout(limits.GRAMMAR_COMPILER_START_MS / 1000):
                await _answer(process)
        except (TimeoutError, EOFError):
            await self._end(compiler)
            raise Overloaded("Overloaded: the grammar compiler does not start") from None
        except asyncio.CancelledError:
            await self._end(compiler)
            raise
        return compiler

    def _rest(self, compiler: _Compiler) -> None:
        """Keep a compiler for the next grammar, for a while."""
        self._idle.append(compiler)
        loop = asyncio.get_running_loop()
        compiler.home = loop.call_later(self._idle_ms / 1000, self._send_home, compiler)

    def _send_home(self, compiler: _Compiler) -> None:
        if compiler in self._idle:
            task = asyncio.create_task(self._end(compiler))
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    async def _end(self, compiler: _Compiler) -> None:
        if compiler.home is not None:
            compiler.home.cancel()
        if compiler in self._idle:
            self._idle.remove(compiler)
        if compiler in self._all:
            self._all.remove(compiler)
        try:
            compiler.process.kill()
        except ProcessLookupError:
            pass  # it has ended already
        await compiler.process.wait()


async def _ask(process: Process, grammar: str) -> str | None:
    """Return what a compiler says is wrong with a grammar. Raises EOFError, OSError: it is gone."""
    assert process.stdin is not None, "made with pipes"
    process.stdin.write(json.dumps(grammar).encode() + b"\n")
    await process.stdin.drain()
    return await _answer(process)


async def _answer(process: Process) -> str | None:
    """Return the next line of a compiler. Raises EOFError where it has ended."""
    assert process.stdout is not None, "made with pipes"
    line = await process.stdout.readline()
    if not line.endswith(b"\n"):
        raise EOFError
    error: str | None = json.loads(line)
    return error
