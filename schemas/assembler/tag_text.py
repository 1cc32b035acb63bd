"""Tags in text that comes in pieces: what may be shown while one may be about to begin.

Owns two questions: where does a tag stand, and does the text begin with one. White space beside a
tag belongs to it. Time is linear in the text, however it is cut. Tags hold `<` or another first
character once only, so that a tag's beginning at the end of a text has one possible place.
"""

__all__ = ["BLANKS", "LeadingTag", "UntilTag"]

BLANKS = " \t\r\n"


class UntilTag:
    """Text up to a tag; of the text, all but the blanks that touch the tag is shown."""

    __slots__ = ("_blanks", "_held", "_tag", "_trims", "dropped")

    def __init__(self, tag: str, *, trims: bool = False) -> None:
        """Take the tag; with `trims`, blanks before the first text are not shown either."""
        assert tag and tag.rfind(tag[0]) == 0, "a tag's first character stands in it once"
        self._tag = tag
        self._trims = trims
        self._held = ""
        """A proper beginning of the tag that the text so far ends with."""
        self._blanks: list[str] = []
        """Blanks before `_held`: shown once text follows."""
        self.dropped = ""
        """The blanks before the tag, once it came: text after all where the tag is."""

    def push(self, text: str) -> tuple[str, str | None]:
        """Return what may be shown now, and what follows the tag: None while there is no tag."""
        text = self._held + text
        at = text.find(self._tag)
        if at >= 0:
            shown = self._show(text[:at])
            self.dropped = "".join(self._blanks)
            self._held, self._blanks = "", []
            return shown, text[at + len(self._tag) :]
        start = text.rfind(self._tag[0], max(0, len(text) - len(self._tag) + 1))
        if start < 0 or not self._tag.startswith(text[start:]):
            start = len(text)
        self._held = text[start:]
        return self._show(text[:start]), None

    @property
    def holds(self) -> bool:
        """True while the text so far ends in what may be the tag's beginning."""
        return bool(self._held)

    def end(self) -> str:
        """Return what was held back: no tag came."""
        rest = "".join(self._blanks) + self._held
        self._held, self._blanks = "", []
        return rest

    def _show(self, text: str) -> str:
        solid = text.rstrip(BLANKS)
        if not solid:
            if text and not self._trims:
                self._blanks.append(text)
            return ""
        blanks = text[len(solid) :]
        if self._trims:
            solid, self._trims = solid.lstrip(BLANKS), False
        if self._blanks:
            solid = "".join(self._blanks) + solid
        self._blanks = [blanks] if blanks else []
        return solid


class LeadingTag:
    """Whether a text begins with a tag, blanks before it aside."""

    __slots__ = ("_blanks", "_held", "_tag")

    def __init__(self, tag: str) -> None:
        self._tag = tag
        self._held = ""
        self._blanks: list[str] = []

    def push(self, text: str) -> tuple[bool, str] | None:
        """Return whether the tag came, and what follows it or else all the text; None = open."""
        solid = self._held + text if self._held else text.lstrip(BLANKS)
        if not self._held:
            self._blanks.append(text[: len(text) - len(solid)])
        if solid.startswith(self._tag):
            return True, solid[len(self._tag) :]
        self._held = solid
        if self._tag.startswith(solid):
            return None
        return False, self.end()

    @property
    def holds(self) -> bool:
        """True while the text so far is a beginning of the tag, blanks before it aside."""
        return bool(self._held)

    def end(self) -> str:
        """Return all the text so far, still undecided."""
        return "".join(self._blanks) + self._held
