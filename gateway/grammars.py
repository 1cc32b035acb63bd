"""What a reply's text is held to: from tools, formats and thoughts to a grammar that compiles.

Owns the answer to "can this be enforced": every grammar that leaves the gateway has been compiled
over the model's tokenizer, and what cannot be enforced is refused by name. Grammars are kept by the
hash of what asked for them, so that agents that repeat their tools with every turn wait once. The
compiling is done by children (`grammar_compiling.py`). Called by the handlers that generate.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from gateway.drafting import PLAIN, ReplyForm
from gateway.grammar_compiling import TOO_COMPLEX, GrammarCompiler
from gateway.grammar_culprit import culprit_of
from gateway.prompts import Prompts
from infra.reply_forms import AUTO, form_of
from infra.tokenizer import Tokenizer
from schemas import limits
from schemas.dialects.canonical import CanonicalRequest, InvalidRequest
from schemas.reply_plan import Part, Plan, grammar_of, needs_plan, plan_of
from schemas.tool_grammar import THINK, THINK_OPEN, Form

__all__ = ["Grammars"]

_INLINE_BYTES_MAX = 16 * limits.KIB
"""Longer wishes are read in a thread: 16 KiB take about 1 ms."""
_TAIL_TOKENS = 8
"""Enough of a prompt's end to see an open `<think>`."""

Made = tuple[str, Form] | InvalidRequest


class Grammars:
    """Makes the grammars of one model's replies, and keeps them."""

    def __init__(
        self,
        *,
        prompts: Prompts,
        compiler: GrammarCompiler,
        tool_parser: str = AUTO,
        reasoning_parser: str = AUTO,
    ) -> None:
        self._prompts = prompts
        self._compiler = compiler
        self._parsers = (tool_parser, reasoning_parser)
        self._form: Form | None = None
        self._kept: OrderedDict[bytes, asyncio.Task[Made]] = OrderedDict()
        self._kept_bytes = 0

    async def form_of(
        self, canonical: CanonicalRequest, prompt_token_ids: Sequence[int]
    ) -> ReplyForm:
        """Return what the reply is held to and how it is read back.

        Raises: InvalidRequest naming the field and the keyword that cannot be enforced, the token
            that the model does not have, or thoughts of a model that has none. Overloaded.
        """
        tokenizer = self._prompts.tokenizer
        _check_tokens(canonical, tokenizer)
        form = self._form_for(canonical, prompt_token_ids, tokenizer)
        if not needs_plan(canonical):
            parser = form.reasoning_parser
            return PLAIN if parser is None else ReplyForm(reasoning_parser=parser)
        grammar, form = await self._grammar(canonical, form)
        calls = bool(canonical.tools) and canonical.tool_choice.mode != "none"
        return ReplyForm(
            grammar=grammar,
            tool_parser=form.tool_parser if calls else None,
            reasoning_parser=form.reasoning_parser,
        )

    async def stop(self) -> None:
        """End what is still being compiled, and the compilers."""
        for task in self._kept.values():
            task.cancel()
        await asyncio.gather(*self._kept.values(), return_exceptions=True)
        await self._compiler.stop()

    def _form_for(
        self, canonical: CanonicalRequest, prompt_token_ids: Sequence[int], tokenizer: Tokenizer
    ) -> Form:
        """Return how the model writes this reply. Raises InvalidRequest where it cannot think."""
        if self._form is None:
            self._form = form_of(tokenizer.template_text, tokenizer.control_tokens, *self._parsers)
        form, thinking = self._form, canonical.thinking
        if form.reasoning_parser is None:
            if thinking is not None and thinking.enabled and thinking.budget_tokens is not None:
                raise InvalidRequest("thinking", "this model does not support thinking")
            return form
        if canonical.prompt is not None:  # continued as it is: no turn, no thoughts
            return replace(form, reasoning_parser=None)
        tail = tokenizer.text_of(prompt_token_ids[-_TAIL_TOKENS:]).rstrip()
        opened = THINK_OPEN if tail.endswith("<think>") else THINK
        return replace(form, reasoning_parser=opened)

    async def _grammar(self, canonical: CanonicalRequest, form: Form) -> tuple[str, Form]:
        """Return the grammar of a reply and the form it is written in, made once for all equals."""
        key, size_bytes = _key_of(canonical, form)
        task = self._kept.get(key)
        if task is None:
            task = asyncio.create_task(self._make(canonical, form, size_bytes))
            self._kept[key] = task
            task.add_done_callback(lambda done: self._keep(key, done))
        self._kept.move_to_end(key)
        made = await asyncio.shield(task)  # others may wait for it when this client leaves
        if isinstance(made, InvalidRequest):
            raise InvalidRequest(made.path, made.reason, made.status)
        return made

    async def _make(self, canonical: CanonicalRequest, form: Form, size_bytes: int) -> Made:
        try:
            if size_bytes <= _INLINE_BYTES_MAX:
                plan = plan_of(canonical, form)
            else:
                plan = await asyncio.to_thread(plan_of, canonical, form)
            return await self._compiled(plan), plan.form
        except InvalidRequest as error:
            return error

    async def _compiled(self, plan: Plan) -> str:
        """Return a plan's grammar, proven to compile. Raises InvalidRequest, Overloaded."""
        parts = [*plan.tools.values(), *([plan.answer] if plan.answer else [])]
        errors = await self._compiler.check([part.grammar for part in parts])
        unenforced = []
        for (name, part), error in zip(plan.tools.items(), errors, strict=False):
            if error is not None and part.strict:
                raise await self._refusal(part, error)
            if error is not None:
                unenforced.append(name)
        if plan.answer is not None and errors[-1] is not None:
            raise await self._refusal(plan.answer, errors[-1])
        grammar = grammar_of(plan, unenforced)
        if len(parts) == 1 and plan.answer is not None and grammar == plan.answer.grammar:
            return grammar
        (error,) = await self._compiler.check([grammar])
        if error is not None:
            raise InvalidRequest(plan.path, f"cannot be enforced: {error}")
        return grammar

    async def _refusal(self, part: Part, error: str) -> InvalidRequest:
        """Return the error of a schema that does not compile, naming the keyword at fault."""
        if error == TOO_COMPLEX:
            return InvalidRequest(part.path, f"the schema cannot be enforced: {error}")
        place = await culprit_of(part.schema, self._compiler.check)
        path = ".".join((part.path, *place))
        what = f"the JSON schema keyword '{place[-1]}'" if place else "the schema"
        return InvalidRequest(path, f"{what} cannot be enforced: {error}")

    def _keep(self, key: bytes, task: asyncio.Task[Made]) -> None:
        """Keep a result for those who ask again, within bounds of number and bytes."""
        if task.cancelled() or task.exception() is not None:
            self._kept.pop(key, None)
            return
        self._kept_bytes += _size(task)
        while len(self._kept) > limits.GRAMMARS_KEPT or (
            self._kept_bytes > limits.GRAMMARS_KEPT_BYTES_MAX
        ):
            oldest = next((name for name, made in self._kept.items() if made.done()), None)
            if oldest is None:
                break
            self._kept_bytes -= _size(self._kept.pop(oldest))


def _size(task: asyncio.Task[Made]) -> int:
    made = task.result()
    return len(made[0]) if isinstance(made, tuple) else 0


def _key_of(canonical: CanonicalRequest, form: Form) -> tuple[bytes, int]:
    """Return a hash of all that a grammar is made from, and its size in bytes."""
    tools = [(tool.name, tool.schema, tool.strict) for tool in canonical.tools]
    wish = (
        canonical.dialect,
        tools,
        canonical.tool_choice,
        canonical.output,
        form.reasoning_parser,
        (canonical.min_tokens > 0, canonical.ignore_eos, bool(canonical.bad_words)),
    )
    try:
        text = msgspec.json.encode(wish)
    except UnicodeEncodeError:
        raise InvalidRequest("tools" if tools else "", "lone surrogate in a schema") from None
    return hashlib.sha256(text).digest(), len(text)


def _check_tokens(canonical: CanonicalRequest, tokenizer: Tokenizer) -> None:
    """Refuse ids that are no tokens of the model."""
    size = tokenizer.vocabulary_size
    for entry in canonical.logit_bias:
        if not 0 <= entry.token_id < size:
            raise InvalidRequest(f"logit_bias.{entry.token_id}", _no_token(size))
    for index, token_id in enumerate(canonical.stop_token_ids):
        if not 0 <= token_id < size:
            raise InvalidRequest(f"stop_token_ids.{index}", _no_token(size))


def _no_token(size: int) -> str:
    return f"no token of this model, whose ids go from 0 to {size - 1}"
