"""`millstream ask`: one question over the public API, streamed to the terminal."""

import json
import sys
from collections.abc import Iterator

import click
import httpx

from infra.cli.settings import data_option, running, setting

__all__ = ["command", "texts"]

_FIRST_BYTE_WITHIN_S = 600.0
_NOT_READY = (503, 529)
_HINT = "See `millstream status`; while it starts, `millstream status --wait 120` waits."


@click.command("ask")
@click.argument("prompt", nargs=-1, required=True)
@click.option("--max-tokens", type=click.IntRange(1), default=256, show_envvar=True)
@data_option
@setting("--url", "url", "Base URL of the API; else the platform on the data folder.", "URL")
@setting("--key", "key", "API key; else the data folder's development key.", "KEY")
def command(prompt: tuple[str, ...], max_tokens: int, **flags: str | None) -> None:
    """Ask PROMPT (one or more words) at temperature 0 and print the answer as it comes."""
    config = running(flags).config
    body = {
        "model": config.model,
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "messages": [{"role": "user", "content": " ".join(prompt)}],
    }
    headers = {"x-api-key": config.key, "anthropic-version": "2023-06-01"}
    try:
        with httpx.stream(
            "POST",
            f"{config.url}/v1/messages",
            json=body,
            headers=headers,
            timeout=httpx.Timeout(10.0, read=_FIRST_BYTE_WITHIN_S),
            trust_env=False,  # a proxy for the outside must not take loopback calls
        ) as response:
            if response.status_code != 200:
                response.read()
                why = f"{config.url} answered {response.status_code}: {response.text.strip()}"
                _fail(why, hint=response.status_code in _NOT_READY)
            _print(texts(response.iter_lines()))
    except httpx.ConnectError as error:
        _fail(f"{config.url} cannot be reached: {error}", hint=True)
    except (httpx.HTTPError, ValueError) as error:
        _fail(f"{config.url} broke off: {error or type(error).__name__}")


def texts(lines: Iterator[str]) -> Iterator[str]:
    """Return the text pieces of a stream of Anthropic's events.

    Raises: ValueError where the stream holds an error or ends before its last event.
    """
    for line in lines:
        if not line.startswith("data:"):
            continue
        event = json.loads(line.removeprefix("data:"))
        match event.get("type"):
            case "content_block_delta":
                yield event["delta"].get("text", "")
            case "error":
                raise ValueError(event["error"]["message"])
            case "message_stop":
                return
    raise ValueError("the answer ended before its last event")


def _print(pieces: Iterator[str]) -> None:
    """Print text as it comes, and end its line, also where it breaks off."""
    begun = False
    try:
        for piece in pieces:
            click.echo(piece, nl=False)
            begun = True
    finally:
        if begun:
            click.echo()


def _fail(why: str, *, hint: bool = False) -> None:
    click.echo(f"{why}\n{_HINT}" if hint else why, err=True)
    sys.exit(1)
