"""Composition root of the grammar compiler: `python -m gateway.grammar_compiler`.

A child of one gateway: reads one grammar a line, writes one verdict a line, and ends with its
parent's end of the pipe. Memory is bounded by the system, time by the parent, and by an alarm where
the parent is gone.
"""

import json
import resource
import signal
import sys
from pathlib import Path

from gateway.grammar_compiler.checking import Checker
from infra.guidance import Guidance
from schemas import limits

_ALARM_S = 2 * limits.GRAMMAR_COMPILE_MS / 1000


def main(arguments: list[str]) -> int:
    """Answer until the parent hangs up; `arguments`: model folder, vocabulary size, end token."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is the gateway's business
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (limits.GRAMMAR_COMPILER_BYTES_MAX,) * 2)
    folder, vocab_size, eos_id = arguments
    checker = Checker(Guidance.load(Path(folder), vocab_size=int(vocab_size), eos_id=int(eos_id)))
    _answer(None)  # ready
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_REAL, _ALARM_S)
        error = checker.check(json.loads(line))
        signal.setitimer(signal.ITIMER_REAL, 0)
        _answer(error)
    return 0


def _answer(error: str | None) -> None:
    sys.stdout.write(json.dumps(error) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
