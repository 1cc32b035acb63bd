"""What the platform is compared with, installed into folders of their own.

Owns versions, their fastest documented settings, and where they are kept. Nothing of them enters
the product's environment.
"""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from infra.bench.children import Child, start, start_module
from infra.bench.platform import clean_environ
from infra.errors import StartupError
from infra.ports import Entropy

__all__ = [
    "LITELLM",
    "Served",
    "free_port",
    "install",
    "litellm",
    "mock_server",
    "wait_answering",
]

LITELLM = "1.108.7"
_LITELLM_PACKAGES = (f"litellm[proxy]=={LITELLM}", "uvloop", "httptools")
_INSTALL_WITHIN_S = 600.0
_READY_WITHIN_S = 180.0
_LITELLM_SETTINGS = """\
model_list:
  - model_name: mock
    litellm_params:
      model: openai/mock
      api_base: http://127.0.0.1:{port}/v1
      api_key: none
litellm_settings:
  drop_params: false
  set_verbose: false
  json_logs: false
  turn_off_message_logging: true
  callbacks: []
  num_retries: 0
router_settings:
  num_retries: 0
  disable_cooldowns: true
general_settings:
  disable_spend_logs: true
  disable_error_logs: true
  background_health_checks: false
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A server that a load client can be pointed at."""

    host: str
    port: int
    path: str
    headers: Mapping[str, str]
    model: str
    pids: Mapping[str, int]
    """Every process that serves it, by name."""


async def install(folder: Path, name: str, packages: tuple[str, ...]) -> Path:
    """Return the Python of a peer's own environment, made where it is missing.

    Raises: StartupError where the packages cannot be had.
    """
    place = folder / name
    python, done = place / "bin" / "python", place / "installed"
    wanted = "\n".join(packages)
    if done.is_file() and done.read_text() == wanted:
        return python
    uv = str(Path(sys.prefix) / "bin" / "uv")
    await _run(uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(place))
    await _run(uv, "pip", "install", "--quiet", "--python", str(python), *packages)
    done.write_text(wanted)
    return python


@asynccontextmanager
async def mock_server(environ: Mapping[str, str], folder: Path) -> AsyncIterator[Served]:
    """Run the mock OpenAI server until the block ends."""
    child = await start_module("mock", "infra.bench.mock_openai", clean_environ(environ), folder)
    try:
        port = int(await child.read_line(30.0))
        yield Served(
            host="127.0.0.1",
            port=port,
            path="/v1/chat/completions",
            headers={},
            model="mock",
            pids={"mock": child.pid},
        )
    finally:
        await child.stop()


@asynccontextmanager
async def litellm(
    environ: Mapping[str, str], folder: Path, peers: Path, upstream: Served, entropy: Entropy
) -> AsyncIterator[Served]:
    """Run LiteLLM's proxy, one worker, before `upstream` until the block ends.

    Its documentation's advice for speed is followed: production mode, logging at ERROR, no spend
    or error logs, no retries, no health checks, uvloop. It refuses to start without a key, so it
    checks one, as the platform does; no database stands behind it.
    """
    python = await install(peers, "litellm", _LITELLM_PACKAGES)
    settings = folder / "litellm.yaml"
    settings.write_text(_LITELLM_SETTINGS.format(port=upstream.port))
    port = free_port()
    key = f"sk-{entropy.token(16).hex()}"
    own = {
        "LITELLM_MASTER_KEY": key,
        "LITELLM_MODE": "PRODUCTION",
        "LITELLM_LOG": "ERROR",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_DONT_SHOW_FEEDBACK_BOX": "true",
    }
    command = (
        *(str(python.parent / "litellm"), "--config", str(settings)),
        *("--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"),
        *("--telemetry", "False"),
    )
    child = await start("litellm", command, {**clean_environ(environ), **own}, folder)
    drain = asyncio.create_task(_drain(child))
    try:
        await wait_answering(child, f"http://127.0.0.1:{port}/health/liveliness")
        yield Served(
            host="127.0.0.1",
            port=port,
            path="/v1/chat/completions",
            headers={"authorization": f"Bearer {key}"},
            model="mock",
            pids={"litellm": child.pid, **upstream.pids},
        )
    finally:
        drain.cancel()
        await child.stop()


async def wait_answering(child: Child, url: str, within_s: float = _READY_WITHIN_S) -> None:
    """Return once a URL answers 200. Raises StartupError where the process ends or stays silent."""
    async with httpx.AsyncClient(trust_env=False, timeout=5, verify=False) as client:
        for _ in range(int(within_s / 0.5)):
            if not child.is_running:
                break
            try:
                if (await client.get(url)).status_code == 200:
                    return
            except httpx.HTTPError:
                pass  # not listening yet
            await asyncio.sleep(0.5)
    raise StartupError(f"{child.name} does not answer at {url}")


async def _drain(child: Child) -> None:
    while True:
        await child.read_line(86_400)


async def _run(*command: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(_INSTALL_WITHIN_S):
        _, errors = await process.communicate()
    if process.returncode:
        raise StartupError(f"{' '.join(command[:3])}: {errors.decode()[-500:]}")


def free_port() -> int:
    """Return a port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])
