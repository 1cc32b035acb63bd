"""The stored JSON schemas, by kind; those of `refused.jsonl` hold what no engine here enforces."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
from jsonschema.validators import validator_for

_FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSchema:
    """One schema and where it stands."""

    name: str
    schema: Any

    @property
    def refused(self) -> bool:
        """Whether it is to be refused."""
        return self.name.startswith("refused")

    def problems(self, value: object) -> list[str]:
        """Return what a well-kept validator says against a value, formats included."""
        known = validator_for(self.schema, default=jsonschema.Draft202012Validator)
        checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
        found = known(self.schema, format_checker=checker).iter_errors(value)
        return [error.message for error in found]


def stored_schemas() -> list[StoredSchema]:
    """Return all of them."""
    return [
        StoredSchema(name=f"{file.stem}:{number}", schema=json.loads(line))
        for file in sorted(_FOLDER.glob("*.jsonl"))
        for number, line in enumerate(file.read_text().splitlines(), 1)
    ]
