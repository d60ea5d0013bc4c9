"""Many byte streams at once, with the features of the `Atomizer` bit for bit (design 1.4)."""

import functools
import os
import re
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from atomnative import Atomizer, BatchedByteStream, ByteCorpus, byte_tick_feature_table
from atomnative.data.features import LIVE_COLUMNS
from atomnative.data.stream import expand_features
from tests.packets import MODES
from tests.shards import SHARDS, MakeShards, around, on_disk
from tests.states import leaf_types, through_a_file

# Legend: K ticks, B streams.

Window = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

# Of all bytes only the "/" has the low nibble 15: its share of the sketch fades into the subnormal numbers and to zero.
CONTENTS = [b"\nab1,", b"/" + "Lines, même 42 times.\n".encode() * 35, bytes(range(0x80, 0x8F))]
TOTAL = sum(map(len, CONTENTS))
TWO_WRAPS = 2 * TOTAL + 30
CHUNKS = [1, 2, 7, 4096]
WINDOWS = [1, 3, 1, 16, 8, 2, 65, 5]


@pytest.fixture
def corpus(make_shards: MakeShards) -> ByteCorpus:
    return ByteCorpus(make_shards(*CONTENTS))


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("warmup", [0, 64])
def test_features_are_the_atomizers_over_shard_ends_and_two_wraps(
    corpus: ByteCorpus, chunk: int, mode: str, warmup: int
) -> None:
    offsets = [0, 1, len(CONTENTS[0]), TOTAL - 1, TOTAL + 5]
    stream = BatchedByteStream(corpus, 5, offsets=offsets, chunk=chunk, pack_mode=mode, warmup=warmup)
    got = windows(stream, TWO_WRAPS)
    fading = got[1][..., 319]
    assert ((fading > 0) & (fading < torch.finfo(torch.float32).tiny)).any(), "the subnormal numbers must be met"
    assert_same_window(got, expected_window(CONTENTS, offsets, TWO_WRAPS, mode, warmup=warmup))


@settings(deadline=None, max_examples=30)
@given(
    contents=SHARDS,
    offsets=st.lists(st.integers(0, 100) | st.integers(0, 1 << 62), min_size=1, max_size=3),
    chunk=st.integers(1, 20),
    warmup=st.integers(0, 20),
    period=st.sampled_from([256.0, 10.3, 3.0, 0.7]),
    plan=st.lists(st.integers(1, 9), min_size=1, max_size=5),
)
def test_features_are_the_atomizers_for_any_corpus_offsets_chunk_warmup_and_windows(
    contents: list[bytes], offsets: list[int], chunk: int, warmup: int, period: float, plan: list[int]
) -> None:
    with on_disk(contents) as paths:
        stream = BatchedByteStream(
            ByteCorpus(paths), len(offsets), offsets=offsets, chunk=chunk, warmup=warmup, phase_period=period
        )
        got = joined([stream.next_window(ticks) for ticks in plan])
    assert_same_window(got, expected_window(contents, offsets, sum(plan), period=period, warmup=warmup))


@pytest.mark.parametrize("chunk", CHUNKS)
def test_a_window_is_as_many_single_ticks(corpus: ByteCorpus, chunk: int) -> None:
    by_window, by_tick = (BatchedByteStream(corpus, 3, chunk=chunk) for _ in range(2))
    for ticks in [*WINDOWS, 4 * chunk % 300 + 1, *WINDOWS]:
        singles = [by_tick.next() for _ in range(ticks)]
        assert [tuple(part.shape) for part in singles[0]] == [(3,), (3, 320), (3,)]
        current, features, target = zip(*singles, strict=True)
        stacked = (torch.stack(current), torch.stack(features), torch.stack(target))
        assert_same_window(by_window.next_window(ticks), stacked)


def test_the_compact_window_expands_to_the_whole_one(corpus: ByteCorpus) -> None:
    whole, compact = (BatchedByteStream(corpus, 3, chunk=7) for _ in range(2))
    table = byte_tick_feature_table()
    for ticks in WINDOWS:
        current, live, target = compact.next_compact_window(ticks)
        assert live.shape == (ticks, 3, len(LIVE_COLUMNS))
        assert live.dtype == torch.float32
        assert_same_window(whole.next_window(ticks), (current, expand_features(table, current, live), target))


def test_the_live_columns_are_phase_length_cosine_and_sketch() -> None:
    assert list(LIVE_COLUMNS) == [298, 299, 300, 301, *range(304, 320)]


def test_expanding_leaves_the_table_as_it_was() -> None:
    table, current = byte_tick_feature_table(), torch.tensor([[5], [5]])
    before = table.clone()
    expand_features(table, current, torch.full((2, 1, len(LIVE_COLUMNS)), 9.0))
    assert torch.equal(table, before)


@pytest.mark.parametrize("chunk", CHUNKS)
def test_targets_are_the_following_bytes(corpus: ByteCorpus, chunk: int) -> None:
    offsets = [0, 3, TOTAL - 2]
    stream = BatchedByteStream(corpus, 3, offsets=offsets, chunk=chunk)
    current, _, target = windows(stream, TOTAL + 10)
    for b, offset in enumerate(offsets):
        assert bytes(current[:, b].tolist()) == around(CONTENTS, offset, TOTAL + 10)
        assert bytes(target[:, b].tolist()) == around(CONTENTS, offset + 1, TOTAL + 10)


def test_the_streams_begin_evenly_spread(corpus: ByteCorpus) -> None:
    stream = BatchedByteStream(corpus, 7)
    assert stream.pos.tolist() == [b * TOTAL // 7 for b in range(7)]
    current, _, _ = stream.next()
    assert bytes(current.tolist()) == b"".join(around(CONTENTS, b * TOTAL // 7, 1) for b in range(7))


def test_the_default_warmup_is_64_bytes_and_none_at_the_corpus_start(corpus: ByteCorpus) -> None:
    offsets = [b * TOTAL // 3 for b in range(3)]
    got = BatchedByteStream(corpus, 3).next_window(10)
    assert_same_window(got, expected_window(CONTENTS, offsets, 10, warmup=64))


@pytest.mark.parametrize("chunk", CHUNKS)
def test_positions_count_the_ticks_taken_and_not_the_bytes_read_ahead(corpus: ByteCorpus, chunk: int) -> None:
    offsets, taken = [0, TOTAL - 1, 3 * TOTAL + 4], 0
    stream = BatchedByteStream(corpus, 3, offsets=offsets, chunk=chunk)
    for ticks in [*WINDOWS, TOTAL, 1]:
        stream.next_window(ticks)
        taken += ticks
        assert stream.pos.tolist() == [offset + taken for offset in offsets]
        assert stream.state_dict()["pos"].tolist() == stream.pos.tolist()


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("warmup", [0, 64])
def test_a_restored_stream_goes_on_bit_for_bit_from_any_tick(corpus: ByteCorpus, chunk: int, warmup: int) -> None:
    offsets = [0, TOTAL - 20, 2]
    stream = BatchedByteStream(corpus, 3, offsets=offsets, chunk=chunk, warmup=warmup)
    whole, states = expected_window(CONTENTS, offsets, sum(WINDOWS) + 750, warmup=warmup), []
    for ticks in [*WINDOWS, 700, 3, 16]:
        states.append(through_a_file(stream.state_dict()))
        stream.next_window(ticks)
    for state in states:
        taken = int(state["pos"][0])
        resumed = BatchedByteStream(corpus, 3, chunk=chunk, warmup=5)
        resumed.next_window(4)
        resumed.load_state_dict(state)
        current, features, target = (part[taken : taken + 25] for part in whole)
        assert_same_window(windows(resumed, 25), (current, features, target))


def test_a_state_and_its_loaded_copy_do_not_move_with_the_stream(corpus: ByteCorpus) -> None:
    stream = BatchedByteStream(corpus, 3)
    stream.next_window(5)
    state = stream.state_dict()
    expected = stream.next_window(9)
    for _ in range(2):
        stream.load_state_dict(state)
        assert_same_window(stream.next_window(9), expected)


def test_a_state_holds_only_tensors_and_plain_values(corpus: ByteCorpus) -> None:
    stream = BatchedByteStream(corpus, 3)
    stream.next()
    state = stream.state_dict()
    assert state["corpus"] == corpus.signature()
    assert leaf_types(state) <= {torch.Tensor, str, int, float}


def test_a_state_of_another_number_of_streams_is_refused(corpus: ByteCorpus) -> None:
    state = BatchedByteStream(corpus, 3).state_dict()
    stream = BatchedByteStream(corpus, 4)
    with pytest.raises(ValueError, match="3 streams, this run 4: use batch size 3"):
        stream.load_state_dict(state)
    assert_same_window(stream.next_window(5), BatchedByteStream(corpus, 4).next_window(5))


def test_a_state_of_a_changed_corpus_is_refused_only_where_that_is_asked(corpus: ByteCorpus) -> None:
    before = BatchedByteStream(corpus, 3)
    before.next_window(5)
    path = corpus.paths[1]
    os.truncate(path, 600)
    contents = [CONTENTS[0], CONTENTS[1][:600], CONTENTS[2]]
    stream = BatchedByteStream(ByteCorpus(corpus.paths), 3)
    with pytest.raises(ValueError, match=rf"{re.escape(path)} had {len(CONTENTS[1])} bytes, now 600"):
        stream.load_state_dict(before.state_dict())
    stream.load_state_dict(before.state_dict(), strict_corpus=False)
    current, _, _ = stream.next()
    assert bytes(current.tolist()) == b"".join(around(contents, b * TOTAL // 3 + 5, 1) for b in range(3))


def test_two_bytes_feed_sixty_four_streams(make_shards: MakeShards) -> None:
    contents = [b"a", b"\n"]
    stream = BatchedByteStream(ByteCorpus(make_shards(*contents)), 64, chunk=3)
    offsets = [0] * 32 + [1] * 32
    assert stream.pos.tolist() == offsets
    assert_same_window(windows(stream, 40), expected_window(contents, offsets, 40, warmup=64))


@pytest.mark.parametrize("period", [100.3, 7.7, 0.3, 1e6, 1.0])
def test_a_phase_period_need_be_neither_whole_nor_long(corpus: ByteCorpus, period: float) -> None:
    stream = BatchedByteStream(corpus, 2, offsets=[0, 9], phase_period=period)
    expected = expected_window(CONTENTS, [0, 9], 300, period=period, warmup=64)
    assert_same_window(windows(stream, 300), expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, not 0"),
        ({"chunk": 0}, "chunk must be at least 1, not 0"),
        ({"warmup": -1}, "warmup must not be negative, not -1"),
        ({"offsets": [0]}, "1 offsets for 2 streams: give one for each"),
        ({"offsets": [3, -1]}, "offset -1 is negative: positions start at 0"),
        ({"pack_mode": "greedy"}, "pack_mode must be one of"),
        ({"phase_period": 0.0}, "phase_period must be positive"),
    ],
)
def test_an_argument_out_of_its_domain_is_refused(corpus: ByteCorpus, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BatchedByteStream(corpus, **{"batch_size": 2, **arguments})


def test_a_window_of_no_ticks_is_refused(corpus: ByteCorpus) -> None:
    with pytest.raises(ValueError, match="at least 1 tick, not 0"):
        BatchedByteStream(corpus, 2).next_window(0)


def windows(stream: BatchedByteStream, ticks: int) -> Window:
    """`ticks` ticks by windows of mixed lengths."""
    taken, parts = 0, []
    while taken < ticks:
        count = min(WINDOWS[len(parts) % len(WINDOWS)], ticks - taken)
        parts.append(stream.next_window(count))
        taken += count
    return joined(parts)


def joined(parts: Sequence[Window]) -> Window:
    current, features, target = zip(*parts, strict=True)
    return torch.cat(current), torch.cat(features), torch.cat(target)


def expected_window(
    contents: Sequence[bytes],
    offsets: Sequence[int],
    ticks: int,
    mode: str = "linguistic",
    period: float = 256.0,
    warmup: int = 0,
) -> Window:
    """What an `Atomizer` gives that was first fed the bytes before each offset. [K, B], [K, B, 320], [K, B]."""
    columns = []
    for offset in offsets:
        before = warmup if offset else 0
        data = around(contents, (offset - before) % sum(map(len, contents)), before + ticks + 1)
        values = torch.tensor(list(data[before:]))  # [K+1]
        columns.append((values[:-1], atomizer_features(data, mode, period)[before:-1], values[1:]))
    current, features, target = zip(*columns, strict=True)
    return torch.stack(current, dim=1), torch.stack(features, dim=1), torch.stack(target, dim=1)


@functools.lru_cache(maxsize=50)
def atomizer_features(data: bytes, mode: str, period: float) -> torch.Tensor:
    return torch.stack([packet.features for packet in Atomizer(1, period, mode).encode_bytes(data)])


def assert_same_window(got: Window, expected: Window) -> None:
    for part, other in zip(got, expected, strict=True):
        assert part.dtype == other.dtype
        assert part.shape == other.shape
        assert torch.equal(part.view(torch.int32), other.view(torch.int32)), "bit for bit, also the sign of a zero"
