"""A model's chat template: jinja2 in a sandbox, set up as transformers does.

Templates come with models and are not trusted: they run sandboxed, without files, and see no clock
unless they are given one.

Source: transformers/utils/chat_template_utils.py.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn, Self

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from infra.errors import StartupError
from infra.ports import Clock

_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")
# What a template's own expressions can raise on messages that it was not written for.
_TEMPLATE_FAULTS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class TemplateRefused(Exception):
    """The template raised an exception, on purpose or not."""


class ChatTemplate:
    """One compiled template; immutable."""

    def __init__(
        self, source: str, special_tokens: Mapping[str, str], clock: Clock | None = None
    ) -> None:
        """Compile the template; raises StartupError where it is malformed."""
        self.source = source
        self._special_tokens = dict(special_tokens)
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlocks, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        if clock is not None:
            environment.globals["strftime_now"] = lambda form: datetime.fromtimestamp(
                clock.now_ms() / 1_000, UTC
            ).strftime(form)
        try:
            self._template = environment.from_string(source)
            # Copied for every prompt, which is slow of the chain of dictionaries that it is.
            self._template.globals = dict(self._template.globals)
            names = {node.name for node in environment.parse(source).find_all(nodes.Name)}
        except jinja2.TemplateError as error:
            raise StartupError(f"the model's chat template is malformed: {error}") from error
        self.knows_tools = "tools" in names
        """True where it shows tools, calls and results itself."""

    @classmethod
    def load(
        cls, model_path: Path, settings: Mapping[str, object], clock: Clock | None = None
    ) -> Self:
        """Read chat_template.jinja, or the template in tokenizer_config.json (`settings`).

        Raises: StartupError.
        """
        file = model_path / "chat_template.jinja"
        source = (
            file.read_text(encoding="utf-8") if file.exists() else settings.get("chat_template")
        )
        if not isinstance(source, str):
            raise StartupError(f"no chat template in {model_path}: expected chat_template.jinja")
        return cls(source, _special_tokens(settings), clock)

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, object]] = (),
        enable_thinking: bool | None = None,
    ) -> str:
        """Return the prompt; raises TemplateRefused.

        Args:
            enable_thinking: None leaves it to the template.
        """
        settings = {} if enable_thinking is None else {"enable_thinking": enable_thinking}
        try:
            return self._template.render(
                self._special_tokens,
                messages=messages,
                tools=tools or None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **settings,
            )
        except _TEMPLATE_FAULTS as error:
            raise TemplateRefused(f"the model's chat template refuses this: {error}") from error


class _GenerationBlocks(Extension):
    """`{% generation %}` marks what training learns from; for a prompt it is just its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as an instance attribute

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _special_tokens(settings: Mapping[str, object]) -> dict[str, str]:
    tokens = {}
    for name in _SPECIAL_TOKENS:
        token = settings.get(name)
        content = token.get("content") if isinstance(token, dict) else token
        if isinstance(content, str):
            tokens[name] = content
    return tokens


def _to_json(value: object, ensure_ascii: bool = False, indent: int | None = None) -> str:
    # jinja2's own filter escapes HTML, which no model was trained on.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
