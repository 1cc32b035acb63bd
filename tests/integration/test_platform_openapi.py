"""The served OpenAPI document against the served API, by schemathesis and by its own examples.

The platform is whole, with the scripted engine at full speed and a small context, so that even the
longest reply that fuzzing asks for ends in time.
"""

import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.integration.platform import SOAK, Platform

SECONDS = 600 if SOAK else 30
CHECKS = (
    *("not_a_server_error", "status_code_conformance", "content_type_conformance"),
    *("response_headers_conformance", "response_schema_conformance", "unsupported_method"),
)


@pytest.fixture
def document(quick_platform: Platform) -> dict[str, object]:
    """Return the served document."""
    answer = httpx.get(f"{quick_platform.url}/v1/openapi.json", verify=False)
    assert answer.status_code == 200
    found: dict[str, object] = answer.json()
    return found


def test_the_document_is_served_to_everybody(document: dict[str, object]) -> None:
    """No key is needed to learn how to call the API."""
    assert document["openapi"] == "3.1.0"


def test_the_api_does_what_its_document_says(quick_platform: Platform, tmp_path: Path) -> None:
    """Fuzzed from the document, no call meets a 5xx, an undeclared status, type, header or body."""
    command = [
        *(str(Path(sys.executable).with_name("schemathesis")), "run"),
        f"{quick_platform.url}/v1/openapi.json",
        *("--header", f"x-api-key: {quick_platform.admin_key}"),
        # One worker: two may parse Python at once, which CPython 3.11 answers with a SystemError.
        *("--max-time", str(SECONDS), "--workers", "1", "--seed", "1"),
        *("--phases", "coverage,fuzzing,stateful", "--checks", ",".join(CHECKS)),
        *("--request-timeout", "30", "--warnings", "off", "--continue-on-failure"),
    ]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS + 180,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6_000:]
