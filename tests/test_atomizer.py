"""Where bytes are cut into packets, and what each packet says of itself (design 1.2)."""

import dataclasses
import itertools
import math
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from atomnative import Atomizer, byte_tick_feature_table
from tests.packets import ANY_BYTES, MODES, TEXTS, all_plain, in_pieces, payloads, plain
from tests.states import through_a_file

# Half of them so small that a code point may be longer.
BOUNDS = st.integers(1, 4) | st.integers(1, 40)
SPAN_BOUNDS = st.integers(2, 4) | st.integers(2, 40)
MODE = st.sampled_from(MODES)
PERIODS = st.sampled_from([256.0, 7.0, 10.3, 0.75])

SPACES, BLANKS, NEWLINES = b"\t\n\r ", b"\t ", b"\n\r"
DIGITS = b"0123456789"
LETTERS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
PUNCTUATION = b"!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
CODES = {
    "whitespace": 1,
    "punctuation": 2,
    "newline": 3,
    "class_transition": 4,
    "max_span": 5,
    "eos": 6,
    "generated": 7,
}
FLOAT32_ROUNDING = 1e-6


@settings(deadline=None, max_examples=60)
@given(in_pieces(ANY_BYTES), BOUNDS, MODE)
def test_payloads_join_to_the_input_and_packets_do_not_depend_on_the_calls(
    pieces: list[bytes], bound: int, mode: str
) -> None:
    data = b"".join(pieces)
    atomizer = Atomizer(bound, pack_mode=mode)
    packets = []
    for piece in pieces[:-1]:
        packets += atomizer.encode_bytes(piece, reset=False, flush=False)
    packets += atomizer.encode_bytes(pieces[-1], reset=False, flush=True)
    assert b"".join(payloads(packets)) == data
    assert all(payloads(packets))
    assert all_plain(packets) == all_plain(Atomizer(bound, pack_mode=mode).encode_bytes(data))


@settings(deadline=None, max_examples=50)
@given(ANY_BYTES, BOUNDS, MODE)
def test_without_a_flush_only_the_end_is_held_back_and_an_empty_call_brings_it(
    data: bytes, bound: int, mode: str
) -> None:
    atomizer = Atomizer(bound, pack_mode=mode)
    packets = atomizer.encode_bytes(data, flush=False)
    assert data.startswith(b"".join(payloads(packets)))
    assert "eos" not in [packet.boundary for packet in packets]
    rest = atomizer.encode_bytes(b"", reset=False)
    assert b"".join(payloads(packets + rest)) == data
    assert atomizer.encode_bytes(b"", reset=False) == []


@settings(deadline=None, max_examples=50)
@given(ANY_BYTES, BOUNDS, MODE, PERIODS)
def test_positions_join_and_durations_and_phases_follow_from_them(
    data: bytes, bound: int, mode: str, period: float
) -> None:
    position = 0
    for packet in Atomizer(bound, period, mode).encode_bytes(data):
        assert packet.start == position
        assert packet.end - packet.start == packet.duration == len(packet.payload)
        assert packet.phase == pytest.approx(2 * math.pi * (position % period) / period, abs=1e-12)
        position = packet.end
    assert position == len(data)


@settings(deadline=None, max_examples=100)
@given(TEXTS, SPAN_BOUNDS, MODE)
def test_no_cut_of_a_text_falls_inside_a_code_point(text: str, bound: int, mode: str) -> None:
    packets = Atomizer(bound, pack_mode=mode).encode(text)
    assert "".join(packet.payload.decode("utf-8") for packet in packets) == text


@settings(deadline=None, max_examples=100)
@given(ANY_BYTES, BOUNDS, MODE)
@example(b"\xe2\x82 ", 2, "eager")
@example(b"\xf0\x9f\x98a1", 3, "linguistic")
def test_no_payload_is_longer_than_the_bound_but_a_single_longer_code_point(data: bytes, bound: int, mode: str) -> None:
    for payload in payloads(Atomizer(bound, pack_mode=mode).encode_bytes(data)):
        assert len(payload) <= bound or len(payload.decode("utf-8")) == 1


@pytest.mark.parametrize("mode", MODES)
def test_in_byte_tick_every_byte_is_a_packet_at_once_and_says_what_it_is(mode: str) -> None:
    atomizer = Atomizer(1, pack_mode=mode)
    packets = atomizer.encode_bytes(bytes(range(256)) + "é€😀".encode(), flush=False)
    assert payloads(packets) == [bytes([byte]) for byte in [*range(256), *"é€😀".encode()]]
    assert atomizer.encode_bytes(b"", reset=False, flush=True) == []
    for packet in packets:
        byte = packet.payload[0]
        if byte in NEWLINES:
            assert packet.boundary == "newline"
        elif byte in BLANKS:
            assert packet.boundary == "whitespace"
        else:
            assert packet.boundary == ("punctuation" if byte in PUNCTUATION else "max_span")


EAGER = [
    ("after a newline", 8, "a\nb", ["a\n newline", "b eos"]),
    ("after each newline of several", 8, "\r\n\n", ["\r newline", "\n newline", "\n newline"]),
    ("after punctuation", 8, "a,b", ["a, punctuation", "b eos"]),
    ("after each of several", 8, "a?!", ["a? punctuation", "! punctuation"]),
    ("after a space", 8, "one two", ["one  whitespace", "two eos"]),
    ("after a tab", 8, "one\ttwo", ["one\t whitespace", "two eos"]),
    ("not after a space that follows a space", 8, "a  b", ["a  whitespace", " b eos"]),
    ("from letter to digit and back", 8, "ab12cd", ["ab class_transition", "12 class_transition", "cd eos"]),
    ("not between other classes", 8, "a\x00\x7fé0", ["a\x00\x7fé0 eos"]),
    ("at the bound", 8, "abcdefghij", ["abcdefgh max_span", "ij eos"]),
    ("at the bound with nothing after it", 8, "abcdefgh", ["abcdefgh max_span"]),
    ("at the bound of two", 2, "abc", ["ab max_span", "c eos"]),
    ("before a code point that crosses the bound", 4, "abcé", ["abc max_span", "é eos"]),
    ("after a code point that ends at the bound", 4, "abéc", ["abé max_span", "c eos"]),
    ("around a code point longer than the bound", 2, "a€b", ["a max_span", "€ max_span", "b eos"]),
    ("around code points much longer than the bound", 2, "😀😀", ["😀 max_span", "😀 max_span"]),
]
LINGUISTIC = [
    ("after a newline, however early", 8, "a\nb", ["a\n newline", "b eos"]),
    ("after a space at three quarters", 8, "abcde fgh", ["abcde  whitespace", "fgh eos"]),
    ("not after a space before that", 8, "abcd ef", ["abcd ef eos"]),
    ("after a space that follows a space", 8, "abcd  ef", ["abcd   whitespace", "ef eos"]),
    ("after punctuation at three quarters", 8, "a,b.c;d!", ["a,b.c; punctuation", "d! eos"]),
    ("at a class switch at three quarters", 8, "abc123de", ["abc123 class_transition", "de eos"]),
    ("three bytes are not three quarters of five", 5, "ab c", ["ab c eos"]),
    ("four bytes are three quarters of five", 5, "abc d", ["abc  whitespace", "d eos"]),
    ("at the bound after the last space inside", 8, "one twofour", ["one  whitespace", "twofour eos"]),
    ("at the bound after the last of two", 8, "a, bcdefg", ["a,  whitespace", "bcdefg eos"]),
    ("at the bound at the last class switch", 8, "ab12cdef", ["ab12 class_transition", "cdef eos"]),
    ("a space can be a packet alone", 4, " abcd", ["  whitespace", "abcd max_span"]),
    ("after a space exactly at the bound", 4, "abc d", ["abc  whitespace", "d eos"]),
    ("at the bound where nothing soft is inside", 8, "abcdefghij", ["abcdefgh max_span", "ij eos"]),
    ("before a code point that crosses the bound", 8, "aéééé", ["aééé max_span", "é eos"]),
    ("around a code point longer than the bound", 2, "a€b", ["a max_span", "€ max_span", "b eos"]),
]


@pytest.mark.parametrize(("bound", "text", "expected"), [e[1:] for e in EAGER], ids=[e[0] for e in EAGER])
def test_eager_cuts(bound: int, text: str, expected: list[str]) -> None:
    assert cuts(text, bound, "eager") == expected


@pytest.mark.parametrize(("bound", "text", "expected"), [e[1:] for e in LINGUISTIC], ids=[e[0] for e in LINGUISTIC])
def test_linguistic_cuts(bound: int, text: str, expected: list[str]) -> None:
    assert cuts(text, bound, "linguistic") == expected


def cuts(text: str, bound: int, mode: str) -> list[str]:
    return [f"{packet.payload.decode()} {packet.boundary}" for packet in Atomizer(bound, pack_mode=mode).encode(text)]


def test_a_space_that_begins_an_eager_span_stays_with_what_follows() -> None:
    """The design leaves open whether a space follows what was cut off before it; the code says no."""
    assert cuts("a, b", 8, "eager") == ["a, punctuation", " b eos"]
    assert cuts("a\n b", 8, "eager") == ["a\n newline", " b eos"]


@settings(deadline=None, max_examples=200)
@given(TEXTS, SPAN_BOUNDS, MODE)
def test_a_text_is_cut_where_the_design_says(text: str, bound: int, mode: str) -> None:
    expected, rest = [], text.encode()
    while rest:
        length = next_cut(rest, bound, mode)
        expected.append(rest[:length])
        rest = rest[length:]
    assert payloads(Atomizer(bound, pack_mode=mode).encode(text)) == expected


def next_cut(rest: bytes, bound: int, mode: str) -> int:
    """The length of the first packet of a text, found with all that follows in view."""
    soft, padded = 0, rest + b"\0"
    for length in range(1, min(bound, len(rest)) + 1):
        last, after = padded[length - 1], padded[length]
        blank, switch = last in BLANKS, is_switch(last, after)
        if last in NEWLINES:
            return length
        if mode == "eager":
            if last in PUNCTUATION or switch or (blank and length > 1 and rest[length - 2] not in BLANKS):
                return length
        elif last in PUNCTUATION or blank or (switch and length < bound):
            if length >= 0.75 * bound:
                return length
            soft = length
    if len(rest) < bound:
        return len(rest)
    if soft:
        return soft
    ends = [length for length in range(1, len(padded)) if padded[length] & 0xC0 != 0x80]
    return max([end for end in ends if end <= bound], default=ends[0])


def is_switch(a: int, b: int) -> bool:
    return (a in LETTERS and b in DIGITS) or (a in DIGITS and b in LETTERS)


@pytest.mark.parametrize(
    ("payload", "level"),
    [(b"ab 0\x00\xe9", 1), (b"a,b", 2), (b"ab_", 2), (b"ab\n", 3), (b"\r", 3), (b",\n", 3)],
)
def test_the_level_is_that_of_the_strongest_mark_inside(payload: bytes, level: int) -> None:
    assert Atomizer(32).packet_from_payload(payload).level == level


@settings(deadline=None, max_examples=60)
@given(ANY_BYTES, BOUNDS, MODE, PERIODS)
def test_features_are_those_of_the_designs_table(data: bytes, bound: int, mode: str, period: float) -> None:
    sketch, previous_length = [0.0] * 16, 0
    for packet in Atomizer(bound, period, mode).encode_bytes(data):
        expected = feature_row(packet.payload, packet.start, packet.boundary, bound, period, previous_length, sketch)
        assert packet.features.dtype == torch.float32
        torch.testing.assert_close(
            packet.features.double(), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=FLOAT32_ROUNDING
        )
        sketch = [0.85 * c + 0.15 * g for c, g in zip(sketch, nibble_histogram(packet.payload), strict=True)]
        previous_length = len(packet.payload)


def nibble_histogram(payload: bytes) -> list[float]:
    counts = Counter(byte & 15 for byte in payload)
    return [counts[nibble] / len(payload) for nibble in range(16)]


def feature_row(
    payload: bytes, start: int, boundary: str, bound: int, period: float, previous_length: int, sketch: list[float]
) -> list[float]:
    length, counts = len(payload), Counter(payload)

    def share(group: bytes) -> float:
        return sum(counts[byte] for byte in group) / length

    def byte_class(byte: int) -> str:
        groups = {"space": SPACES, "digit": DIGITS, "letter": LETTERS, "control": bytes(range(32))}
        groups |= {"punctuation": PUNCTUATION, "continuation": bytes(range(0x80, 0xC0))}
        return next((name for name, group in groups.items() if byte in group), "other")

    classes = [byte_class(byte) for byte in payload]
    entropy = -sum(count / length * math.log2(count / length) for count in counts.values())
    angle = 2 * math.pi * (start % period) / period
    g = nibble_histogram(payload)
    norms = math.hypot(*g) * math.hypot(*sketch)
    cosine = sum(a * b for a, b in zip(g, sketch, strict=True)) / norms if norms else 0.0
    level = 3 if share(NEWLINES) else 2 if share(PUNCTUATION) else 1
    return [
        *(counts[byte] / length for byte in range(256)),
        *(float(payload[0] // 16 == nibble) for nibble in range(16)),
        *(float(payload[-1] // 16 == nibble) for nibble in range(16)),
        length / bound,
        *(share(group) for group in (SPACES, DIGITS, LETTERS, PUNCTUATION, bytes(range(32)))),
        entropy / 8,
        sum(a != b for a, b in itertools.pairwise(classes)) / (length - 1) if length > 1 else 0.0,
        payload[0] / 255,
        payload[-1] / 255,
        math.sin(angle),
        math.cos(angle),
        previous_length / bound,
        (cosine + 1) / 2,
        CODES[boundary] / 7,
        level / 3,
        *sketch,
    ]


@pytest.fixture(scope="module")
def table() -> torch.Tensor:
    return byte_tick_feature_table()


def test_the_byte_table_holds_each_byte_as_the_first_of_a_context(table: torch.Tensor) -> None:
    rows = [Atomizer(1).encode_bytes(bytes([byte]))[0].features for byte in range(256)]
    assert torch.equal(table, torch.stack(rows))


@settings(deadline=None, max_examples=30)
@given(st.binary(min_size=1, max_size=40), MODE, PERIODS)
def test_the_byte_tables_other_columns_hold_in_any_context(
    table: torch.Tensor, data: bytes, mode: str, period: float
) -> None:
    fixed = [*range(298), 302, 303]
    for packet in Atomizer(1, period, mode).encode_bytes(data):
        assert torch.equal(packet.features[fixed], table[packet.payload[0]][fixed])


@settings(deadline=None, max_examples=60)
@given(ANY_BYTES, ANY_BYTES, BOUNDS, MODE)
def test_a_restored_state_goes_on_in_the_middle_of_a_span(first: bytes, rest: bytes, bound: int, mode: str) -> None:
    atomizer = Atomizer(bound, pack_mode=mode)
    atomizer.encode_bytes(first, flush=False)
    state = atomizer.state_dict()
    expected = all_plain(atomizer.encode_bytes(rest, reset=False))

    other = Atomizer(bound, pack_mode=mode)
    other.encode_bytes(b"something else", flush=False)
    other.load_state_dict(through_a_file(state))
    assert all_plain(other.encode_bytes(rest, reset=False)) == expected


def test_a_new_encoding_begins_a_fresh_context_unless_told_otherwise() -> None:
    atomizer = Atomizer(8)
    fresh = all_plain(atomizer.encode("some text, and more"))
    atomizer.encode_bytes(b"unfinished", flush=False)
    assert all_plain(atomizer.encode("some text, and more")) == fresh
    atomizer.encode_bytes(b"unfinished", flush=False)
    atomizer.reset()
    assert all_plain(atomizer.encode_bytes(b"some text, and more", reset=False)) == fresh


def test_a_text_is_encoded_as_its_utf8_bytes() -> None:
    text = "Où est l'été ? 😀\n"
    assert all_plain(Atomizer(8).encode(text)) == all_plain(Atomizer(8).encode_bytes(text.encode("utf-8")))


@pytest.mark.parametrize("mode", MODES)
def test_a_produced_byte_is_in_byte_tick_the_packet_of_the_byte_read(mode: str) -> None:
    data = bytes(range(256))
    reader, writer = Atomizer(1, pack_mode=mode), Atomizer(1, pack_mode=mode)
    written = [writer.packet_from_payload(bytes([byte])) for byte in data]
    assert all_plain(written) == all_plain(reader.encode_bytes(data))


def test_a_produced_span_is_a_generated_packet_of_this_context() -> None:
    reader, writer = Atomizer(8), Atomizer(8)
    context = [*reader.encode("one two"), *reader.encode_bytes(b"three", reset=False)]
    writer.encode("one two")
    produced = writer.packet_from_payload(b"three")
    assert produced.boundary == "generated"
    assert produced.features[302] == 1.0
    columns = [column for column in range(320) if column != 302]
    assert torch.equal(produced.features[columns], context[-1].features[columns])
    apart = {"boundary": None, "features": None}
    assert plain(produced) | apart == plain(context[-1]) | apart
    following = [atomizer.encode_bytes(b"four", reset=False) for atomizer in (reader, writer)]
    assert all_plain(following[0]) == all_plain(following[1])


def test_a_packet_cannot_be_changed() -> None:
    packet = Atomizer().encode("a")[0]
    with pytest.raises(dataclasses.FrozenInstanceError):
        packet.payload = b"b"  # type: ignore[misc]  # what must fail


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_span_bytes": 0}, "max_span_bytes must be at least 1, not 0"),
        ({"max_span_bytes": -3}, "max_span_bytes must be at least 1, not -3"),
        ({"phase_period": 0.0}, "phase_period must be positive, not 0"),
        ({"phase_period": math.nan}, "phase_period must be positive, not nan"),
        ({"pack_mode": "greedy"}, "one of linguistic, eager, not 'greedy'"),
    ],
)
def test_an_argument_out_of_its_domain_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Atomizer(**arguments)


def test_a_packet_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one byte"):
        Atomizer().packet_from_payload(b"")
