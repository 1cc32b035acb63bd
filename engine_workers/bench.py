"""The bare engine loop, for comparison: `python -m engine_workers.bench`.

Owns nothing but the loop: the engine that a worker would make, in this process's main thread, with
nothing around it: no log, no HTTP, no text. One question a line in (`infra.bench.plan`), one answer
a line out. The prompt is rendered and tokenized when a client would send it.
"""

import itertools
import os
import resource
import sys
import time
from collections.abc import Iterator

import msgspec

from engine_workers.engine.port import Engine, EngineRequest
from engine_workers.engine_choice import environment_lacks, make_engine
from infra.bench.plan import EngineAnswer, EngineQuestion, EngineReply
from infra.config import load
from infra.errors import ConfigError
from infra.logs import configure
from infra.tokenizer import Tokenizer
from schemas.dialects.canonical import CanonicalMessage
from schemas.requests import Sampling


class _Loop:
    """A closed loop of `concurrency` clients over one engine."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer, question: EngineQuestion) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._question = question
        self._live: dict[str, tuple[float, list[float]]] = {}

    def run(self, numbers: Iterator[int]) -> EngineAnswer:
        """Run all prompts; return when their tokens came, in seconds."""
        prompts = iter(self._question.prompts)
        replies: list[EngineReply] = []
        cpu_s, began_s = _cpu_s(), time.perf_counter()
        for _ in range(self._question.concurrency):
            self._add(prompts, numbers)
        while self._live:
            for output in self._engine.step():
                due_s, came_s = self._live[output.run_id]
                came_s.extend([time.perf_counter()] * len(output.token_ids))
                if output.stop is not None:
                    del self._live[output.run_id]
                    gaps_s = tuple(b - a for a, b in itertools.pairwise(came_s))
                    replies.append(EngineReply(first_s=came_s[0] - due_s, gaps_s=gaps_s))
                    self._add(prompts, numbers)
        wall_s = time.perf_counter() - began_s
        return EngineAnswer(wall_s=wall_s, cpu_s=_cpu_s() - cpu_s, replies=tuple(replies))

    def _add(self, prompts: Iterator[str], numbers: Iterator[int]) -> None:
        text = next(prompts, None)
        if text is None:
            return
        due_s = time.perf_counter()
        rendered = self._tokenizer.render([CanonicalMessage(role="user", text=text)])
        run_id = f"bench-{next(numbers)}"
        self._engine.start(
            EngineRequest(
                run_id=run_id,
                prompt_token_ids=tuple(self._tokenizer.encode(rendered)),
                sampling=Sampling(
                    max_tokens=self._question.tokens, temperature=0.0, ignore_eos=True
                ),
                seed=1,
            ),
            (),
        )
        self._live[run_id] = (due_s, [])


def main() -> int:
    """Answer questions until standard input ends; return the exit status."""
    try:
        config = load(os.environ)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    missing = environment_lacks(config, os.environ) if config.engine == "vllm" else {}
    if missing:
        command = [sys.executable, "-P", "-m", "engine_workers.bench"]
        os.execve(sys.executable, command, {**os.environ, **missing})
    configure(config)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # libraries print; answers stay apart
    tokenizer, engine = Tokenizer.load(config.model_path), make_engine(config)
    numbers = itertools.count()
    answers.write(b"ready\n")
    answers.flush()
    for line in sys.stdin.buffer:
        question = msgspec.json.decode(line, type=EngineQuestion)
        answer = _Loop(engine, tokenizer, question).run(numbers)
        answers.write(msgspec.json.encode(answer) + b"\n")
        answers.flush()
    engine.close()
    return 0


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
