"""Bytes to text that can be shown as it comes."""

import codecs
from collections.abc import Generator, Iterable, Iterator

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def text_pieces(values: Iterable[int]) -> Iterator[str]:
    """Text as soon as it is whole: half a UTF-8 character waits, and is dropped at the end.

    Bytes that can belong to no character become U+FFFD.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    for value in values:
        piece = decoder.decode(bytes((value,)))
        if piece:
            yield piece


def until(pieces: Iterable[str], stop: str) -> Generator[str, None, bool]:
    """The pieces up to the first `stop`; what may be its beginning is held back until it is known not to be.

    Returns: whether the stop came.
    """
    held = ""
    for piece in pieces:
        held += piece
        at = held.find(stop)
        if at >= 0:
            if at:
                yield held[:at]
            return True
        keep = next((size for size in range(min(len(stop) - 1, len(held)), 0, -1) if stop.startswith(held[-size:])), 0)
        ready, held = held[: len(held) - keep], held[len(held) - keep :]
        if ready:
            yield ready
    if held:
        yield held
    return False


def printable(text: str) -> str:
    """The text with control characters, but for newline and tab, as U+FFFD: a terminal would obey them."""
    return "".join(c if c in "\n\t" or (c >= " " and not "\x7f" <= c < "\xa0") else REPLACEMENT for c in text)
