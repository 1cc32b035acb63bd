"""How a model writes tool calls and thoughts: as configured, or as its chat template tells.

Owns the choice alone; the forms themselves stand in `schemas.tool_grammar` and the assembler.
"""

from schemas.tool_grammar import HERMES, LLAMA, THINK, Form

__all__ = ["AUTO", "REASONING_PARSERS", "TOOL_PARSERS", "form_of"]

AUTO = "auto"
TOOL_PARSERS = (AUTO, HERMES, LLAMA)
REASONING_PARSERS = (AUTO, "none", THINK)


def form_of(
    template: str, control_tokens: frozenset[str], tool_parser: str, reasoning_parser: str
) -> Form:
    """Return the form of a model.

    Args:
        template: text of its chat template.
        control_tokens: texts of its tokenizer's control tokens.
        tool_parser: one of TOOL_PARSERS.
        reasoning_parser: one of REASONING_PARSERS.
    """
    if tool_parser == AUTO:
        bare = "<|python_tag|>" in template and "<tool_call>" not in template
        tool_parser = LLAMA if bare else HERMES
    thinks = reasoning_parser == THINK or (reasoning_parser == AUTO and "<think>" in template)
    return Form(
        tool_parser=tool_parser,
        reasoning_parser=THINK if thinks else None,
        control_tokens=control_tokens,
    )
