"""Bytes to cut into packets, and packets as values that `==` compares bit for bit."""

from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

from atomnative import AtomPacket

MODES = ("linguistic", "eager")

# Letters, digits, blanks, newlines, punctuation, controls and code points of every length, so that every rule meets.
_CHARACTERS = st.sampled_from("abZ09  \t\n\r.,-\x00\x7fé߿€\u0800\ufffd😀\U0010ffff")
_WORDS = st.sampled_from(["ab", "word", "longword", "42", "1", " ", "  ", ", ", "été", "€"])
TEXTS = st.lists(st.text(_CHARACTERS, max_size=4) | _WORDS, max_size=20).map("".join)

_UNFINISHED = [b"\xc3", b"\xe2\x82", b"\xf0\x90", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xc0\x80", b"\xf5", b"\x80"]
ANY_BYTES = st.lists(
    st.one_of(TEXTS.map(str.encode), st.binary(max_size=8), st.sampled_from(_UNFINISHED)), max_size=12
).map(b"".join)


@st.composite
def in_pieces(draw: st.DrawFn, whole: st.SearchStrategy[bytes]) -> list[bytes]:
    """The drawn bytes cut anywhere, into pieces of which some may be empty."""
    data = draw(whole)
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=6)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def plain(packet: AtomPacket) -> dict[str, Any]:
    """All of a packet, its features as their bytes."""
    return {**vars(packet), "features": packet.features.numpy().tobytes()}


def all_plain(packets: Iterable[AtomPacket]) -> list[dict[str, Any]]:
    return [plain(packet) for packet in packets]


def payloads(packets: Iterable[AtomPacket]) -> list[bytes]:
    return [packet.payload for packet in packets]
