"""What the configuration says of the model that a gateway serves, and of the gateway's own place.

Pure but for `grammars_of`, which makes the compiler of structured output. Called by `assembly.py`.
"""

from gateway.drafting import ServedModel
from gateway.grammar_compiling import GrammarCompiler, compiler_command
from gateway.grammars import Grammars
from gateway.prompts import Prompts
from infra.config import Config
from schemas import limits
from schemas.dialects.models import ModelCard

__all__ = ["grammars_of", "model_card", "preferred_partition", "served_model"]


def grammars_of(config: Config, prompts: Prompts) -> Grammars:
    """Return the gateway's grammars; their compiler needs the tokenizer's vocabulary."""

    def command() -> tuple[str, ...]:
        tokenizer = prompts.tokenizer
        return compiler_command(
            config.model_path, tokenizer.vocabulary_size, min(tokenizer.eos_ids)
        )

    return Grammars(
        prompts=prompts,
        compiler=GrammarCompiler(command),
        tool_parser=config.tool_parser,
        reasoning_parser=config.reasoning_parser,
    )


def served_model(config: Config) -> ServedModel:
    """Return the model that requests are drafted for."""
    return ServedModel(
        alias=config.model,
        model_version=config.model_version,
        pool=config.pool,
        context_tokens=config.context_tokens,
        deadline_ms=config.deadline_ms,
    )


def model_card(config: Config, created_ms: int) -> ModelCard:
    """Return what `GET /v1/models` says of it."""
    return ModelCard(
        id=config.model,
        display_name=config.model,
        created_ms=created_ms,
        max_input_tokens=config.context_tokens - 1,
        max_tokens=config.context_tokens - 1,
    )


def preferred_partition(process: str) -> int:
    """Return the reply partition of gateway i: i mod partitions; other names count as 0."""
    _, _, number = process.rpartition("-")
    return int(number) % limits.REPLY_PARTITIONS if number.isdecimal() else 0
