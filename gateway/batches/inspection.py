"""Looking through an OpenAI batch's input: what is wrong with which line. Pure.

The rules are the file's; what an item asks for is looked at when it is run.
"""

import re
from typing import Final

import msgspec

from schemas import limits
from schemas.batches import InputFault
from schemas.dialects.canonical import shown

__all__ = ["Inspection"]

_CUSTOM_ID_CHARS_MAX: Final = 512
_PRINTABLE: Final = re.compile(r"[^\x00-\x1f\x7f]+")


class Inspection:
    """Takes the lines of one input, then tells what was found."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._seen: set[str] = set()
        self.item_count = 0
        self.faults: list[InputFault] = []
        """The first ones; an input with any is not run."""

    @property
    def is_enough(self) -> bool:
        """True once looking further tells nothing new."""
        too_many = self.item_count > limits.BATCH_FILE_ITEMS_MAX
        return too_many or len(self.faults) >= limits.BATCH_FAULTS_MAX

    def take(self, number: int, line: bytes | None) -> None:
        """Look at a line; its number counts from 1."""
        self.item_count += 1
        if self.item_count > limits.BATCH_FILE_ITEMS_MAX:
            text = f"The file has more than {limits.BATCH_FILE_ITEMS_MAX} requests."
            self.faults.append(InputFault(code="too_many_tasks", message=text))
            return
        fault = self._fault(number, line)
        if fault is not None:
            self.faults.append(fault)

    def end(self) -> None:
        """Note what only the end tells."""
        if not self.item_count:
            self.faults.append(InputFault(code="empty_file", message="The file has no requests."))

    def _fault(self, number: int, line: bytes | None) -> InputFault | None:
        if line is None:
            text = f"A request may have {limits.BATCH_ITEM_BYTES_MAX} bytes."
            return InputFault(code="line_too_long", message=text, line=number)
        try:
            value: object = msgspec.json.decode(line)
        except (msgspec.MsgspecError, RecursionError):
            text = "This line is not parseable as valid JSON."
            return InputFault(code="invalid_json_line", message=text, line=number)
        if not isinstance(value, dict):
            text = "Each line must be a JSON object."
            return InputFault(code="invalid_json_line", message=text, line=number)
        return self._member_fault(number, value)

    def _member_fault(self, number: int, value: dict[str, object]) -> InputFault | None:
        def fault(code: str, message: str, param: str) -> InputFault:
            return InputFault(code=code, message=message, line=number, param=param)

        for name in ("custom_id", "method", "url", "body"):
            if value.get(name) is None:
                text = f"Missing required parameter: '{name}'."
                return fault("missing_required_parameter", text, name)
        custom_id = value["custom_id"]
        if not isinstance(custom_id, str) or len(custom_id) > _CUSTOM_ID_CHARS_MAX:
            text = f"custom_id must be a string of at most {_CUSTOM_ID_CHARS_MAX} characters."
            return fault("invalid_custom_id", text, "custom_id")
        if not _PRINTABLE.fullmatch(custom_id):
            return fault("invalid_custom_id", "custom_id must be printable.", "custom_id")
        if custom_id in self._seen:
            text = f"The custom_id '{shown(custom_id)}' stands in more than one request."
            return fault("duplicate_custom_id", text, "custom_id")
        self._seen.add(custom_id)
        if value["method"] != "POST":
            return fault("invalid_method", "The method must be POST.", "method")
        if value["url"] != self._endpoint:
            text = f"The url must be the batch's endpoint, {self._endpoint}."
            return fault("mismatched_endpoint", text, "url")
        if not isinstance(value["body"], dict):
            return fault("invalid_body", "The body must be a JSON object.", "body")
        return None
