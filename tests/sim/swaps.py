"""Replacing an attribute of the product for one block, in the simulator's process only.

Used by planted bugs (`mutations.py`), tight limits (`tightness.py`) and the cache of decoded
records (`codec_cache.py`); nothing else may.
"""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def swapped(owner: object, **attributes: object) -> Iterator[None]:
    """Put these in the place of the owner's attributes until the block ends."""
    before = {name: getattr(owner, name) for name in attributes}
    try:
        for name, value in attributes.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)
