"""Grammars through real compilers: verdicts, culprits, bounds of time, children that die."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gateway.drafting import PLAIN, ReplyForm
from gateway.errors import Overloaded
from gateway.grammar_compiling import GrammarCompiler
from gateway.grammars import Grammars
from gateway.prompts import Prompts
from schemas.dialects.canonical import (
    InvalidRequest,
    OutputFormat,
    Thinking,
    Tool,
    ToolChoice,
)
from schemas.requests import Dialect, LogitBias
from tests.gateway_http import CONTEXT_TOKENS, byte_compiler, load_tokenizer
from tests.gateway_platform import canonical

LOOKAHEAD = {"type": "string", "pattern": "(?=a)b"}
INTEGER = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
SLOW = {
    "type": "object",
    "properties": {f"p{n}": {"type": "array", "maxItems": 4_096} for n in range(200)},
}


def format_of(schema: object) -> OutputFormat:
    """Return a format of a JSON schema at the path `f`."""
    return OutputFormat(kind="json_schema", schema=schema, path="f")  # type: ignore[arg-type]  # bad ones too


def tool(schema: dict[str, Any], *, name: str = "t", strict: bool = False) -> Tool:
    """Return a tool."""
    return Tool(name=name, description=None, schema=schema, strict=strict)


def with_grammars(
    scenario: Callable[[Grammars, GrammarCompiler], Awaitable[None]],
    compiler: GrammarCompiler | None = None,
) -> None:
    """Run a scenario over grammars with compilers of their own."""

    async def run() -> None:
        made = compiler or byte_compiler()
        prompts = Prompts(load_tokenizer, CONTEXT_TOKENS)
        await prompts.load()
        grammars = Grammars(prompts=prompts, compiler=made)
        try:
            await scenario(grammars, made)
        finally:
            await grammars.stop()
            assert made.pids == []

    asyncio.run(run())


async def form(grammars: Grammars, **fields: object) -> ReplyForm:
    """Return the form of a small request with these fields."""
    return await grammars.form_of(canonical(**fields), [1])  # type: ignore[arg-type]  # test builder


async def refusal(grammars: Grammars, **fields: object) -> InvalidRequest:
    """Return the error of a small request with these fields."""
    with pytest.raises(InvalidRequest) as caught:
        await form(grammars, **fields)
    return caught.value


def test_plain_replies_start_no_compiler() -> None:
    """Without tools and formats a reply is held to nothing, and no child is started."""

    async def scenario(grammars: Grammars, compiler: GrammarCompiler) -> None:
        assert await form(grammars) is PLAIN
        unused = {"tools": (tool(INTEGER),), "tool_choice": ToolChoice(mode="none")}
        assert await form(grammars, **unused) is PLAIN
        assert compiler.pids == []

    with_grammars(scenario)


def test_good_wishes_compile_and_bad_ones_are_named() -> None:
    """Schemas, patterns, choices and grammars pass or are refused at their own path."""

    async def scenario(grammars: Grammars, compiler: GrammarCompiler) -> None:
        for output in (
            format_of(INTEGER),
            format_of({}),
            OutputFormat(kind="json_object", path="f"),
            OutputFormat(kind="regex", pattern="[a-z]+", path="f"),
            OutputFormat(kind="choice", choices=("a", "b"), path="f"),
            OutputFormat(kind="lark", pattern='start: "a" | "b"', path="f"),
        ):
            made = await form(grammars, output=output)
            assert made.grammar is not None and made.tool_parser is None
        for output, path in (
            (
                format_of({"properties": {"a": {"items": LOOKAHEAD}}}),
                "f.properties.a.items.pattern",
            ),
            (format_of({"$ref": "#/$defs/A", "$defs": {"A": LOOKAHEAD}}), "f.$defs.A.pattern"),
            (format_of({"type": "integer", "minimum": 3, "maximum": 2}), "f.minimum"),
            (format_of(False), "f"),
            (OutputFormat(kind="regex", pattern="[a-z", path="f"), "f"),
            (OutputFormat(kind="lark", pattern="start: b", path="f"), "f"),
        ):
            assert (await refusal(grammars, output=output)).path == path

    with_grammars(scenario)


def test_tools_are_strict_or_any_object() -> None:
    """A schema that does not compile is refused of a strict tool, dropped of any other."""

    async def scenario(grammars: Grammars, compiler: GrammarCompiler) -> None:
        loose = {"type": "object", "properties": {"a": LOOKAHEAD}}
        made = await form(grammars, tools=(tool(INTEGER), tool(loose, name="u")))
        assert made.tool_parser == "hermes" and made.grammar is not None
        assert "integer" in made.grammar and "(?=a)" not in made.grammar
        strict = (tool(INTEGER), tool(loose, name="u", strict=True))
        for dialect, path in (
            (Dialect.ANTHROPIC, "tools.1.input_schema"),
            (Dialect.OPENAI, "tools.1.function.parameters"),
            (Dialect.RESPONSES, "tools.1.parameters"),
        ):
            error = await refusal(grammars, tools=strict, dialect=dialect)
            assert error.path == f"{path}.properties.a.pattern"
        refused = (tool({"not": {}}, strict=True),)
        assert (await refusal(grammars, tools=refused)).path == "tools.0.input_schema.not"

    with_grammars(scenario)


def test_what_does_not_go_together_is_refused() -> None:
    """Grammars leave no room for forced lengths, banned words, or a second grammar."""

    async def scenario(grammars: Grammars, compiler: GrammarCompiler) -> None:
        held: dict[str, object] = {"output": format_of(INTEGER)}
        for field, value in (("min_tokens", 1), ("ignore_eos", True), ("bad_words", ("a",))):
            assert (await refusal(grammars, **held, **{field: value})).path == field
        lark = OutputFormat(kind="lark", pattern='start: "a"', path="f")
        assert (await refusal(grammars, output=lark, tools=(tool(INTEGER),))).path == "f"
        bias = (LogitBias(token_id=256, bias=1.0),)
        assert (await refusal(grammars, logit_bias=bias)).path == "logit_bias.256"
        assert (await refusal(grammars, stop_token_ids=(1, 999))).path == "stop_token_ids.1"
        thinking = Thinking(enabled=True, budget_tokens=1_024)
        assert (await refusal(grammars, thinking=thinking)).path == "thinking"
        assert await form(grammars, thinking=Thinking(enabled=True)) is PLAIN

    with_grammars(scenario)


def test_equal_wishes_compile_once_and_errors_are_kept() -> None:
    """Requests that ask for the same share one compilation, at once and later."""

    async def scenario(grammars: Grammars, compiler: GrammarCompiler) -> None:
        wishes = [form(grammars, output=format_of(INTEGER)) for _ in range(20)]
        assert len(set(await asyncio.gather(*wishes))) == 1
        (pid,) = compiler.pids
        bad = format_of(LOOKAHEAD)
        first = await refusal(grammars, output=bad)
        os.kill(pid, signal.SIGSTOP)  # from here on nothing is compiled
        assert (await refusal(grammars, output=bad)).message == first.message
        assert (await form(grammars, output=format_of(INTEGER))).grammar is not None

    with_grammars(scenario)


def test_a_grammar_that_takes_too_long_is_refused_and_the_next_one_is_not() -> None:
    """The compiler that hangs is replaced; the client is told; others hardly wait."""

    async def scenario(grammars: Grammars, compiler: GrammarCompiler) -> None:
        assert (await form(grammars, output=format_of(INTEGER))).grammar is not None
        before = set(compiler.pids)
        slow = asyncio.create_task(refusal(grammars, output=format_of(SLOW)))
        await asyncio.sleep(0.01)
        other = {"type": "object", "properties": {"b": {"type": "string"}}}
        assert (await form(grammars, output=format_of(other))).grammar is not None
        error = await slow
        assert (error.path, "too complex" in error.message) == ("f", True)
        assert not before & set(compiler.pids)

    command = byte_compiler()._command  # the same compiler with less time
    with_grammars(scenario, GrammarCompiler(command, compile_ms=400))


def test_compilers_that_die_or_idle_are_replaced() -> None:
    """A killed child costs at most its own grammar; an idle one is sent home."""

    async def scenario(grammars: Grammars, compiler: GrammarCompiler) -> None:
        for number in range(2):
            wish = {"output": format_of({"type": "integer", "maximum": number})}
            assert (await form(grammars, **wish)).grammar is not None
            os.kill(compiler.pids[0], signal.SIGKILL)
            await asyncio.sleep(0.05)
            wish = {"output": format_of({"type": "integer", "minimum": number})}
            assert (await form(grammars, **wish)).grammar is not None
        async with asyncio.timeout(10):
            while compiler.pids:  # noqa: ASYNC110 # a process's end has no event of its own here
                await asyncio.sleep(0.05)

    with_grammars(scenario, GrammarCompiler(byte_compiler()._command, idle_ms=200))


def test_a_compiler_that_does_not_start_is_an_overload() -> None:
    """Clients are told to come back where no compiler can be had."""

    async def scenario(grammars: Grammars, compiler: GrammarCompiler) -> None:
        with pytest.raises(Overloaded):
            await form(grammars, output=format_of(INTEGER))

    with_grammars(scenario, GrammarCompiler(lambda: (sys.executable, "-c", "pass")))


def test_a_compiler_ends_with_its_gateway() -> None:
    """A child whose parent is gone reads the end of its input and leaves."""

    async def run() -> int:
        process = await asyncio.create_subprocess_exec(
            *byte_compiler()._command(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None and process.stdout is not None
        assert await process.stdout.readline() == b"null\n"
        process.stdin.close()
        async with asyncio.timeout(10):
            return await process.wait()

    assert asyncio.run(run()) == 0
