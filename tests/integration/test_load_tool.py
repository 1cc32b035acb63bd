"""A public load tool, unmodified, against the platform: every request is answered.

The tool is installed into a folder of its own, 840 MB that a user's `make test` need not fetch: CI
runs the first of these, the soak all of them.
"""

import asyncio
import json
import os
import subprocess
from pathlib import Path

import pytest

from infra.bench.peers import install
from infra.config import DEFAULT_CACHE
from tests.integration.platform import MODEL, SOAK, Platform

PACKAGES = ("aiperf==0.13.0",)
IN_CI = os.environ.get("CI") == "true"
in_soak = pytest.mark.skipif(not SOAK, reason="a soak: CI runs the tool on chat completions")
in_soak_and_ci = pytest.mark.skipif(not (SOAK or IN_CI), reason="installs a tool of 840 MB")
ENDPOINTS = (
    pytest.param("chat", marks=in_soak_and_ci),
    *(pytest.param(name, marks=in_soak) for name in ("completions", "responses", "messages")),
)
RUN_WITHIN_S = 300


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_the_scripted_engine_serves_a_load_tool(
    platform: Platform, endpoint: str, tmp_path: Path
) -> None:
    """Two hundred streamed requests, sixteen at a time: no error on any path."""
    check_load(platform, endpoint, tmp_path, requests=200, concurrency=16)


@in_soak
@pytest.mark.vllm
@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_the_real_engine_serves_a_load_tool(
    vllm_platform: Platform, endpoint: str, tmp_path: Path
) -> None:
    """Forty streamed requests, eight at a time: no error."""
    check_load(vllm_platform, endpoint, tmp_path, requests=40, concurrency=8)


def check_load(
    platform: Platform, endpoint: str, folder: Path, *, requests: int, concurrency: int
) -> None:
    """Run the tool; every request must have succeeded."""
    python = asyncio.run(install(DEFAULT_CACHE / "peers", "aiperf", PACKAGES))
    command = [
        *(str(python.with_name("aiperf")), "profile", "-m", MODEL, "--url", platform.url),
        *("--api-key", platform.key, "--endpoint-type", endpoint, "--streaming"),
        *("--tokenizer", str(DEFAULT_CACHE / "models" / MODEL), "--ui", "none"),
        *("--request-count", str(requests), "--concurrency", str(concurrency)),
        *("--isl", "64", "--osl", "16", "--extra-inputs", "ignore_eos:true"),
        *("--artifact-dir", str(folder)),
    ]
    if endpoint == "messages":
        command += ["--header", "anthropic-version:2023-06-01"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=RUN_WITHIN_S, check=False
    )
    assert done.returncode == 0, done.stdout[-3_000:]
    figures = json.loads((folder / "profile_export_aiperf.json").read_text())
    assert figures["request_count"]["avg"] == requests
    assert figures["error_summary"] == []
    assert figures["request_error_rate"]["avg"] == 0
    assert figures["is_complete"] is True
