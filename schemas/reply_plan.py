"""Planning what a reply is held to: from tools, choice and format to its grammar. Pure.

Owns which schemas have to be enforced and which only describe, what goes together, and the order of
thoughts, calls and answer. Whether a grammar compiles is for the caller to find out
(`gateway/grammars.py`): a plan tells the parts that have to be tried.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from schemas import limits
from schemas.dialects.canonical import CanonicalRequest, InvalidRequest, OutputFormat, Tool
from schemas.dialects.openai_functions import FUNCTIONS_VERSION
from schemas.json_schema import ANY_OBJECT, enforceable
from schemas.requests import Dialect
from schemas.tool_grammar import (
    Calls,
    Form,
    answer_choice,
    answer_json,
    answer_regex,
    reply_lark,
)

__all__ = ["Part", "Plan", "grammar_of", "needs_plan", "plan_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One schema of a request, as it would be enforced."""

    path: str
    """Where the schema stands in the request."""
    schema: Mapping[str, object]
    strict: bool
    """False: where it does not compile, any JSON object will do."""

    @property
    def grammar(self) -> str:
        """The part alone, as `RequestAccepted.grammar`."""
        return _written("json_schema", self.schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one reply is held to."""

    form: Form
    mode: Literal["auto", "required", "named"] | None
    """None: no tool may be called."""
    parallel: bool
    tools: Mapping[str, Part]
    """By name; those that may be called."""
    output: OutputFormat | None
    answer: Part | None
    """Of an output that is a JSON schema."""

    @property
    def path(self) -> str:
        """Where a problem of the whole grammar is to be looked for."""
        return "tools" if self.output is None else self.output.path


def needs_plan(canonical: CanonicalRequest) -> bool:
    """Tell whether a reply is held to anything: most are not."""
    calls = bool(canonical.tools) and canonical.tool_choice.mode != "none"
    return calls or canonical.output is not None


def plan_of(canonical: CanonicalRequest, form: Form) -> Plan:
    """Return the plan of a reply. Raises InvalidRequest naming what cannot be enforced."""
    _refuse_conflicts(canonical)
    choice, output = canonical.tool_choice, canonical.output
    mode = choice.mode if canonical.tools and choice.mode != "none" else None
    tools = {}
    if mode is not None:
        for index, tool in enumerate(canonical.tools):
            if not choice.names or tool.name in choice.names:
                tools[tool.name] = _tool_part(tool, _schema_path(canonical, index))
    if output is not None and mode in ("required", "named"):
        output = None  # nothing but calls is written
    if output is not None and output.kind == "lark":
        if mode is not None:
            raise InvalidRequest(output.path, "a grammar cannot be combined with tools")
        form = replace(form, reasoning_parser=None)  # it is the grammar of the whole reply
    return Plan(
        form=form,
        mode=mode,
        parallel=choice.parallel,
        tools=tools,
        output=output,
        answer=None if output is None else _answer_part(output),
    )


def grammar_of(plan: Plan, unenforced: Collection[str] = ()) -> str:
    """Return the grammar of the whole reply, as `RequestAccepted.grammar`.

    Args:
        plan: what it is held to.
        unenforced: tools whose schema does not compile: their arguments may be any JSON object.

    Raises: InvalidRequest where it would be too large.
    """
    grammar = _grammar(plan, unenforced)
    if len(grammar) > limits.JSON_SCHEMA_BYTES_MAX:
        most = limits.JSON_SCHEMA_BYTES_MAX
        raise InvalidRequest(plan.path, f"takes {len(grammar)} bytes as a grammar, at most {most}")
    return grammar


def _grammar(plan: Plan, unenforced: Collection[str]) -> str:
    calls = None
    if plan.mode is not None:
        arguments = {
            name: ANY_OBJECT if name in unenforced else part.schema
            for name, part in plan.tools.items()
        }
        calls = Calls(arguments=arguments, mode=plan.mode, parallel=plan.parallel)
    if calls is None and plan.form.reasoning_parser is None:
        return _plain(plan)
    return _written("lark", reply_lark(plan.form, calls, _answer(plan)))


def _plain(plan: Plan) -> str:
    """Return the grammar of an answer without calls and thoughts."""
    output = plan.output
    assert output is not None, "a plan holds a reply to something"
    match output.kind:
        case "json_schema":
            assert plan.answer is not None, "made with the plan"
            return plan.answer.grammar
        case "json_object":
            return _written("json_object", True)
        case "choice":
            return _written("choice", list(output.choices))
        case kind:
            return _written(kind, output.pattern)


def _answer(plan: Plan) -> str | None:
    """Return the answer's part of a larger grammar."""
    output = plan.output
    if output is None:
        return None
    match output.kind:
        case "json_schema":
            assert plan.answer is not None, "made with the plan"
            return answer_json(plan.answer.schema)
        case "json_object":
            return answer_json(ANY_OBJECT)
        case "choice":
            return answer_choice(output.choices)
        case _:
            assert output.kind == "regex" and output.pattern is not None, "lark stands alone"
            return answer_regex(output.pattern)


def _tool_part(tool: Tool, path: str) -> Part:
    try:
        schema = enforceable(tool.schema, path)
    except InvalidRequest:
        if tool.strict:
            raise
        schema = dict(ANY_OBJECT)
    made = schema if isinstance(schema, dict) else dict(ANY_OBJECT)
    if "type" not in made and "$ref" not in made:
        made = {"type": "object", **made}
    return Part(path=path, schema=made, strict=tool.strict)


def _answer_part(output: OutputFormat) -> Part | None:
    if output.kind != "json_schema":
        return None
    schema = enforceable(output.schema, output.path)
    if schema is False:
        raise InvalidRequest(output.path, "nothing follows this schema")
    return Part(path=output.path, schema={} if schema is True else schema, strict=True)


def _schema_path(canonical: CanonicalRequest, index: int) -> str:
    """Return where the dialect has the schema of a tool's arguments."""
    if canonical.dialect_version == FUNCTIONS_VERSION:
        return f"functions.{index}.parameters"
    member = {Dialect.ANTHROPIC: "input_schema", Dialect.RESPONSES: "parameters"}
    return f"tools.{index}.{member.get(canonical.dialect, 'function.parameters')}"


def _refuse_conflicts(canonical: CanonicalRequest) -> None:
    """Refuse what may leave the engine no token to go on with, or nothing to end with."""
    for field, given in (
        ("min_tokens", canonical.min_tokens > 0),
        ("ignore_eos", canonical.ignore_eos),
        ("bad_words", bool(canonical.bad_words)),
    ):
        if given:
            raise InvalidRequest(field, "cannot be combined with tools or an output format")


def _written(kind: str, value: object) -> str:
    return json.dumps({kind: value}, separators=(",", ":"))
