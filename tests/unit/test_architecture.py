"""ARCHITECTURE.md names only what exists."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "ARCHITECTURE.md").read_text()
NAMED = re.findall(
    r"`((?:schemas|infra|engine_workers|gateway|streams|tests)/[\w/.]*)(?::(\w+))?", TEXT
)


def test_every_path_in_the_architecture_exists() -> None:
    """A reader who follows a path finds something there."""
    assert len(NAMED) > 20
    missing = [path for path, _ in NAMED if not (ROOT / path).exists()]
    assert missing == []


def test_every_function_and_class_in_the_architecture_exists() -> None:
    """`file:name` is defined at the top of that file or re-exported by it."""
    missing = []
    for path, name in NAMED:
        if name:
            tree = ast.parse((ROOT / path).read_text())
            defined = {
                node.name
                for node in tree.body
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            }
            if name not in defined:
                missing.append(f"{path}:{name}")
    assert missing == []


def test_every_link_in_the_architecture_leads_somewhere() -> None:
    """Linked decisions are in the repository."""
    for link in re.findall(r"\]\((docs/[^)]+)\)", TEXT):
        assert (ROOT / link).exists(), link
