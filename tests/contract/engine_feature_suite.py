"""The engine port's contract on every sampling feature, cut at every index, run on every engine.

A reply is made undisturbed and alone; then a continuation from each of its tokens is run, all of
them in one batch. Where one differs it is run again alone, from a cold prefix cache: only that
judges, since the shape of a batch may change how a real model rounds. Beside `engine_suite`'s
fixtures a subclass gives `language`, llguidance's view of the engine's vocabulary.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from engine_workers.engine.port import Engine, EngineRequest
from infra.guidance import Guidance
from schemas.replies import Stop, StopReason, TokenLogprob
from schemas.requests import LogitBias, Sampling
from tests.contract.engine_resume_suite import Forget, again
from tests.contract.engine_suite import GREEDY, Ran, fresh_prompt, request, run_all, stop_over_seam

TOKENS = 14
DRAWN = Sampling(max_tokens=TOKENS, temperature=1.0, ignore_eos=True)
PLAIN = replace(DRAWN, temperature=0.0)
ARGUMENTS = json.dumps(
    {
        "type": "object",
        "additionalProperties": False,
        "required": ["unit"],
        "properties": {"unit": {"enum": ["celsius", "kelvin"]}},
        "x-guidance": {"whitespace_flexible": False},
    }
)
BEGIN, END = '<tool_call>\n{"name": "weather", "arguments": ', "}\n</tool_call>"
CALL = f"start: {json.dumps(BEGIN)} %json {ARGUMENTS} {json.dumps(END)}"
MAYBE_CALL = f"""start: call | TEXT
TEXT: /(.|\\n){{0,40}}/
trigger[lazy]: TEXT "<tool_call>"
call: trigger {json.dumps(BEGIN.removeprefix("<tool_call>"))} %json {ARGUMENTS} {json.dumps(END)}
"""
SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name", "age", "wild"],
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 9},
        "wild": {"type": "boolean"},
    },
}


@dataclass(frozen=True)
class Tools:
    """What a feature's request is made and judged with."""

    engine: Engine
    language: Guidance
    text_of: Callable[[Sequence[int]], str]

    def free(self, prompt: Sequence[int], sampling: Sampling = PLAIN) -> list[int]:
        """Return an undisturbed reply."""
        return run_all(self.engine, request(prompt, sampling))[0].token_ids


Case = tuple[EngineRequest, Callable[[Ran], bool]]
"""A request, and what must hold of its undisturbed reply."""


def _of_length(ran: Ran) -> bool:
    return len(ran.token_ids) == TOKENS and ran.stop == Stop(reason=StopReason.LENGTH)


def _sampled(**changes: Any) -> Callable[[Tools], Case]:
    """Return a feature that shows in nothing but which tokens are drawn."""
    return lambda tools: (
        request(fresh_prompt(8), replace(DRAWN, **changes), seed=1_234),
        _of_length,
    )


def _logit_bias(tools: Tools) -> Case:
    prompt = fresh_prompt(8)
    first, *rest = tools.free(prompt)
    biases = (LogitBias(token_id=first, bias=-100.0), LogitBias(token_id=rest[-1], bias=3.0))
    return (
        request(prompt, replace(PLAIN, logit_bias=biases)),
        lambda ran: first not in ran.token_ids and _of_length(ran),
    )


def _forced(tools: Tools) -> Case:
    biases = (LogitBias(token_id=1_000, bias=100.0),)
    return (
        request(fresh_prompt(8), replace(PLAIN, logit_bias=biases)),
        lambda ran: ran.token_ids == [1_000] * TOKENS,
    )


def _bad_words(tools: Tools) -> Case:
    """Forbid a word of two tokens that the undisturbed reply has, and one of one token."""
    prompt = fresh_prompt(8)
    free = tools.free(prompt)
    pairs = [
        (first, second)
        for first, second in pairwise(free[2:])
        if tools.language.encode(tools.text_of((first, second))) == [first, second]
        and tools.text_of((first, second)).strip()
    ]
    assert pairs, "no two tokens that make a word"
    word, (first, second) = tools.text_of(pairs[0]), pairs[0]
    return (
        request(prompt, replace(PLAIN, bad_words=(word,))),
        lambda ran: ran.token_ids != free and (first, second) not in pairwise(ran.token_ids),
    )


def _stop_string(tools: Tools) -> Case:
    prompt = fresh_prompt(8)
    stop, last = stop_over_seam(tools.free(prompt), tools.text_of)
    return (
        request(prompt, replace(PLAIN, stop=(stop,))),
        lambda ran: (
            ran.stop == Stop(reason=StopReason.STOP_SEQUENCE, stop_sequence=stop)
            and len(ran.token_ids) == last + 1
        ),
    )


def _stop_token(tools: Tools) -> Case:
    prompt = fresh_prompt(8)
    free = tools.free(prompt)
    stop = next(token_id for token_id in free[6:] if token_id not in free[:6])
    whole = free[: free.index(stop) + 1]
    return (
        request(prompt, replace(PLAIN, stop_token_ids=(stop,), ignore_eos=False)),
        lambda ran: (ran.token_ids, ran.stop) == (whole, Stop(reason=StopReason.END)),
    )


def _min_tokens(tools: Tools) -> Case:
    prompt = fresh_prompt(8)
    free = tools.free(prompt)
    return (
        request(prompt, replace(PLAIN, stop_token_ids=(free[3],), min_tokens=8)),
        lambda ran: len(ran.token_ids) >= 8 and free[3] not in ran.token_ids[:8],
    )


def _logprobs(tools: Tools) -> Case:
    def told(ran: Ran) -> bool:
        return len(ran.logprobs) == TOKENS and all(
            len(each.top) == 3
            and len({top.token_id for top in each.top}) == 3
            and sorted(each.top, key=lambda top: -top.logprob) == list(each.top)
            and each.logprob <= each.top[0].logprob <= 0
            for each in ran.logprobs
        )

    return request(fresh_prompt(8), replace(DRAWN, logprobs=3), seed=5), told


def _bare_logprobs(tools: Tools) -> Case:
    return (
        request(fresh_prompt(8), replace(PLAIN, logprobs=0)),
        lambda ran: [each.top for each in ran.logprobs] == [()] * TOKENS,
    )


def _guided(
    grammar: object, obeys: Callable[[str], object], *, max_tokens: int = 60, **changes: Any
) -> Callable[[Tools], Case]:
    """Return a feature whose reply follows a grammar to its end."""

    def case(tools: Tools) -> Case:
        sampling = replace(GREEDY, max_tokens=max_tokens, ignore_eos=False, **changes)
        prompt = tools.language.encode("Describe a wild cat of 9 years:\n")
        asked = replace(request(prompt, sampling, seed=5), grammar=json.dumps(grammar))

        def holds(ran: Ran) -> bool:
            ended = ran.stop == Stop(reason=StopReason.END)
            return ended and bool(obeys(tools.text_of(ran.token_ids)))

        return asked, holds

    return case


def _is_cat(text: str) -> bool:
    return set(json.loads(text)) == {"name", "age", "wild"} and len(json.loads(text)["name"]) <= 6


def _is_call(text: str) -> bool:
    match = re.fullmatch(r"<tool_call>\n(.*)\n</tool_call>", text)
    return match is not None and json.loads(match[1])["arguments"]["unit"] in ("celsius", "kelvin")


def _holds_calls(text: str) -> bool:
    return "<tool_call>" not in text or _is_call(text[text.index("<tool_call>") :].rstrip())


FEATURES: dict[str, Callable[[Tools], Case]] = {
    "greedy": _sampled(temperature=0.0),
    "seeded": _sampled(),
    "top_p": _sampled(top_p=0.7),
    "top_k": _sampled(top_k=5),
    "min_p": _sampled(min_p=0.1),
    "presence_penalty": _sampled(temperature=0.0, presence_penalty=1.5),
    "frequency_penalty": _sampled(temperature=0.0, frequency_penalty=1.5),
    "repetition_penalty": _sampled(temperature=0.0, repetition_penalty=1.4),
    "all_penalties_seeded": _sampled(
        presence_penalty=0.6, frequency_penalty=0.7, repetition_penalty=1.1, top_p=0.9, min_p=0.02
    ),
    "logit_bias": _logit_bias,
    "logit_bias_forces": _forced,
    "bad_words": _bad_words,
    "stop_string": _stop_string,
    "stop_token": _stop_token,
    "min_tokens": _min_tokens,
    "max_tokens": _sampled(temperature=0.0, ignore_eos=False, min_tokens=TOKENS),
    "logprobs": _logprobs,
    "logprobs_of_the_drawn": _bare_logprobs,
    "json_schema": _guided({"json_schema": SCHEMA}, _is_cat),
    "json_schema_seeded": _guided({"json_schema": SCHEMA}, _is_cat, temperature=1.0, logprobs=2),
    "json_object": _guided(
        {"json_object": True}, lambda text: isinstance(json.loads(text), dict), max_tokens=300
    ),
    "regex": _guided(
        {"regex": r"[a-z]{3,8}/[0-9]{2}\.\n(漢|🐨)字"},
        re.compile(r"[a-z]{3,8}/[0-9]{2}\.\n(漢|🐨)字").fullmatch,
    ),
    "choice": _guided(
        {"choice": ["certainly not", "perhaps", "certainly"]},
        {"certainly not", "perhaps", "certainly"}.__contains__,
    ),
    "forced_tool": _guided({"lark": CALL}, _is_call),
    "auto_tool": _guided({"lark": MAYBE_CALL}, _holds_calls, max_tokens=100),
}


class EngineFeatureSuite:
    """Every sampling feature survives a takeover at any token."""

    @pytest.mark.parametrize("feature", FEATURES)
    def test_cut_at_every_index(
        self,
        engine: Engine,
        language: Guidance,
        text_of: Callable[[Sequence[int]], str],
        forget_prefixes: Forget,
        feature: str,
    ) -> None:
        """A reply continued after any of its tokens is the undisturbed one, to its end."""
        original, holds = FEATURES[feature](Tools(engine, language, text_of))
        (free,) = run_all(engine, original)
        assert holds(free), f"undisturbed: {free} {text_of(free.token_ids)!r}"
        check_every_cut(engine, original, free, forget_prefixes)

    def test_a_grammar_that_grows_too_complex(self, engine: Engine) -> None:
        """Such a run ends as refused, where its engine finds out; it is no end of the reply."""
        names = [f"rule{number}" for number in range(3_000)]
        lines = [f'{name}: "x" "{name}"' for name in names]
        lark = "\n".join([f'start: "s" ({" | ".join(names)})', *lines])
        asked = request(fresh_prompt(8), replace(GREEDY, ignore_eos=False))
        engine.start(replace(asked, grammar=json.dumps({"lark": lark})), ())
        outputs = []
        while engine.has_work():
            outputs += engine.step()
        assert outputs[-1].stop is None
        assert outputs[-1].refused is not None and "grammar" in outputs[-1].refused


def check_every_cut(
    engine: Engine, original: EngineRequest, free: Ran, forget_prefixes: Forget
) -> None:
    """Continue a reply from each cut, and compare."""
    forget_prefixes()
    cuts = range(1, len(free.token_ids) + 1)
    continuations = [(again(original), free.token_ids[:cut]) for cut in cuts]
    together = run_all(engine, *continuations)
    for cut, ran in zip(cuts, together, strict=True):
        if goes_on(free, cut, ran):
            continue
        forget_prefixes()
        (alone,) = run_all(engine, (again(original), free.token_ids[:cut]))
        assert goes_on(free, cut, alone), f"cut at {cut}: {alone}, undisturbed: {free}"


def goes_on(free: Ran, cut: int, ran: Ran) -> bool:
    """Tell whether a run gave what the undisturbed one has after the cut."""
    if (ran.token_ids, ran.stop) != (free.token_ids[cut:], free.stop):
        return False
    return all(map(_close, ran.logprobs, free.logprobs[cut:])) and (
        len(ran.logprobs) == len(free.logprobs[cut:])
    )


def _close(one: TokenLogprob, other: TokenLogprob) -> bool:
    """Tell whether numbers agree but for rounding; tokens of equal rank may change places."""
    pairs = zip(one.top, other.top, strict=True)
    return abs(one.logprob - other.logprob) < 1e-3 and all(
        abs(mine.logprob - theirs.logprob) < 1e-3 for mine, theirs in pairs
    )
