"""One stream of packet pairs over the shards, for the single-stream trainer (design 1.3)."""

import itertools
import os
import re
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from atomnative import Atomizer, AtomPacket, StreamingPacketSource
from atomnative.errors import CorpusError
from tests.packets import ANY_BYTES, MODES, all_plain
from tests.shards import MakeShards, on_disk
from tests.states import leaf_types, through_a_file

CONTENTS = ["Où est l'été ?\n😀😀 en 2024, ici".encode(), b"x", "et voilà, 12 €: ".encode() + b"\xe2\x82 \xf0\x9f"]
BOUNDS = [1, 2, 8]
CHUNKS = [4, 7, 1 << 20]

SHARD_LISTS = st.lists(ANY_BYTES.filter(bool), min_size=1, max_size=4).filter(lambda s: sum(map(len, s)) >= 2)


@settings(deadline=None, max_examples=50)
@given(
    contents=SHARD_LISTS,
    bound=st.sampled_from([1, 2, 3, 8, 32]),
    mode=st.sampled_from(MODES),
    chunk_bytes=st.integers(4, 40) | st.just(1 << 20),
    prefetch=st.booleans(),
)
def test_pairs_are_consecutive_packets_of_one_atomizer_run(
    contents: list[bytes], bound: int, mode: str, chunk_bytes: int, prefetch: bool
) -> None:
    expected = packets_of(contents, Atomizer(bound, pack_mode=mode), rounds=3)
    with (
        on_disk(contents) as paths,
        closing(
            StreamingPacketSource(Atomizer(bound, pack_mode=mode), paths, chunk_bytes=chunk_bytes, prefetch=prefetch)
        ) as source,
    ):
        assert_same_pairs(take(source, len(expected) - 1), expected)


def test_in_byte_tick_shard_ends_and_the_wrap_are_plain_byte_transitions(make_shards: MakeShards) -> None:
    whole = b"".join(CONTENTS) * 2
    with closing(StreamingPacketSource(Atomizer(1), make_shards(*CONTENTS), chunk_bytes=5)) as source:
        assert_same_pairs(take(source, len(whole) - 1), Atomizer(1).encode_bytes(whole))


def test_in_spans_a_shard_end_is_an_end_of_stream_and_the_context_goes_on(make_shards: MakeShards) -> None:
    with closing(StreamingPacketSource(Atomizer(32), make_shards(b"one", b"two"))) as source:
        pairs = take(source, 3)
    packets = [current for current, _ in pairs]
    assert [(packet.payload, packet.boundary) for packet in packets] == [
        (b"one", "eos"),
        (b"two", "eos"),
        (b"one", "eos"),
    ]
    assert [(packet.start, packet.end) for packet in packets] == [(0, 3), (3, 6), (6, 9)]
    assert packets[2].features[300] == pytest.approx(3 / 32)


@pytest.mark.parametrize("prefetch", [False, True], ids=["plain", "prefetch"])
@pytest.mark.parametrize("bound", BOUNDS)
def test_without_a_loop_it_ends_after_the_last_shard_and_stays_ended(
    make_shards: MakeShards, bound: int, prefetch: bool
) -> None:
    expected = packets_of(CONTENTS, Atomizer(bound))
    paths = make_shards(*CONTENTS)
    with closing(StreamingPacketSource(Atomizer(bound), paths, chunk_bytes=7, loop=False, prefetch=prefetch)) as source:
        assert_same_pairs(list(source), expected)
        assert next(source, None) is None
        state = through_a_file(source.state_dict())
    with closing(StreamingPacketSource(Atomizer(bound), paths, chunk_bytes=7, loop=False)) as ended:
        ended.load_state_dict(state)
        assert next(ended, None) is None


def test_a_single_packet_without_a_loop_gives_no_pair(make_shards: MakeShards) -> None:
    with closing(StreamingPacketSource(Atomizer(32), make_shards(b"one"), loop=False)) as source:
        assert list(source) == []


@pytest.mark.parametrize("prefetch", [False, True], ids=["plain", "prefetch"])
@pytest.mark.parametrize("chunk_bytes", CHUNKS)
@pytest.mark.parametrize("bound", BOUNDS)
def test_a_restored_source_goes_on_exactly_from_every_pair(
    make_shards: MakeShards, bound: int, chunk_bytes: int, prefetch: bool
) -> None:
    paths = make_shards(*CONTENTS)
    expected = packets_of(CONTENTS, Atomizer(bound), rounds=3)
    pairs = min(len(expected) - 12, 2 * len(expected) // 3 + 2)

    def new() -> StreamingPacketSource:
        return StreamingPacketSource(Atomizer(bound), paths, chunk_bytes=chunk_bytes, prefetch=prefetch)

    with closing(new()) as source:
        states = [source.state_dict()]
        for _ in range(pairs):
            next(source)
            states.append(source.state_dict())
        # All states are used only now: none may have moved with the source.
        for taken, state in enumerate(states):
            with closing(new()) as fresh:
                fresh.load_state_dict(through_a_file(state))
                assert_same_pairs(take(fresh, 10), expected[taken : taken + 11])
        for taken in (0, pairs // 2, pairs):
            source.load_state_dict(states[taken])
            assert_same_pairs(take(source, 10), expected[taken : taken + 11])


@settings(deadline=None, max_examples=50)
@given(
    contents=SHARD_LISTS,
    bound=st.sampled_from([1, 2, 3, 8, 32]),
    mode=st.sampled_from(MODES),
    chunk_bytes=st.integers(4, 40),
    taken=st.integers(0, 60),
    prefetch=st.booleans(),
)
def test_a_restored_source_goes_on_exactly_for_any_shards(
    contents: list[bytes], bound: int, mode: str, chunk_bytes: int, taken: int, prefetch: bool
) -> None:
    with on_disk(contents) as paths:

        def new() -> StreamingPacketSource:
            return StreamingPacketSource(
                Atomizer(bound, pack_mode=mode), paths, chunk_bytes=chunk_bytes, prefetch=prefetch
            )

        with closing(new()) as source, closing(new()) as resumed:
            take(source, taken)
            take(resumed, 3)
            resumed.load_state_dict(through_a_file(source.state_dict()))
            for left, right in zip(take(source, 30), take(resumed, 30), strict=True):
                assert all_plain(left) == all_plain(right)


def test_a_state_holds_only_tensors_and_plain_values(make_shards: MakeShards) -> None:
    with closing(StreamingPacketSource(Atomizer(8), make_shards(*CONTENTS), chunk_bytes=7)) as source:
        take(source, 5)
        state = source.state_dict()
        assert state["corpus"] == source.corpus.signature()
    assert leaf_types(state) <= {torch.Tensor, str, bytes, int, float, type(None)}


@pytest.mark.parametrize("buffer_size", [0, 1, 5])
def test_recent_keeps_the_last_packets_given_out(make_shards: MakeShards, buffer_size: int) -> None:
    expected = packets_of(CONTENTS, Atomizer(8), rounds=2)
    with closing(StreamingPacketSource(Atomizer(8), make_shards(*CONTENTS), buffer_size=buffer_size)) as source:
        for taken in range(len(expected)):
            assert all_plain(source.recent) == all_plain(expected[max(0, taken - buffer_size) : taken])
            next(source)


def test_recent_keeps_2048_packets_where_nothing_else_is_said(make_shards: MakeShards) -> None:
    with closing(StreamingPacketSource(Atomizer(1), make_shards(b"ab"))) as source:
        take(source, 2100)
        assert len(source.recent) == 2048


def test_the_source_begins_a_fresh_context(make_shards: MakeShards) -> None:
    used = Atomizer(8)
    used.encode_bytes(b"unfinished", flush=False)
    with closing(StreamingPacketSource(used, make_shards(*CONTENTS))) as source:
        assert_same_pairs(take(source, 5), packets_of(CONTENTS, Atomizer(8))[:6])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"chunk_bytes": 3}, "chunk_bytes must be at least 4, not 3"),
        ({"buffer_size": -1}, "buffer_size must not be negative, not -1"),
    ],
)
def test_an_argument_out_of_its_domain_is_refused(
    make_shards: MakeShards, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        StreamingPacketSource(Atomizer(1), make_shards(b"abc"), **arguments)


def test_no_file_and_an_empty_shard_are_refused_as_by_the_corpus(make_shards: MakeShards) -> None:
    with pytest.raises(ValueError, match="at least one file"):
        StreamingPacketSource(Atomizer(1), [])
    paths = make_shards(b"abc", b"")
    with pytest.raises(ValueError, match=rf"{re.escape(str(paths[1]))} is empty"):
        StreamingPacketSource(Atomizer(1), paths)


def test_a_changed_corpus_is_refused_and_the_change_named(make_shards: MakeShards) -> None:
    paths = make_shards(*CONTENTS)
    state = state_after(5, paths, chunk_bytes=7)
    paths[2].write_bytes(b"other")
    with (
        closing(StreamingPacketSource(Atomizer(8), paths, chunk_bytes=7)) as source,
        pytest.raises(ValueError, match=rf"{re.escape(str(paths[2]))} had {len(CONTENTS[2])} bytes, now 5"),
    ):
        source.load_state_dict(state)


def test_a_state_taken_with_another_chunk_size_is_refused(make_shards: MakeShards) -> None:
    paths = make_shards(*CONTENTS)
    state = state_after(5, paths, chunk_bytes=7)
    with (
        closing(StreamingPacketSource(Atomizer(8), paths, chunk_bytes=8)) as source,
        pytest.raises(ValueError, match="chunk_bytes was 7 when saved, 8 now: use the same"),
    ):
        source.load_state_dict(state)


def state_after(pairs: int, paths: list[Path], chunk_bytes: int) -> dict[str, Any]:
    with closing(StreamingPacketSource(Atomizer(8), paths, chunk_bytes=chunk_bytes)) as source:
        take(source, pairs)
        return source.state_dict()


@pytest.mark.parametrize("prefetch", [False, True], ids=["plain", "prefetch"])
def test_a_shard_cut_short_under_it_is_an_error_that_names_it(make_shards: MakeShards, prefetch: bool) -> None:
    paths = make_shards(b"abcdefgh", b"ijklmnopqrst")
    with closing(StreamingPacketSource(Atomizer(1), paths, chunk_bytes=4, prefetch=prefetch)) as source:
        next(source)
        os.truncate(paths[1], 2)
        with pytest.raises(CorpusError, match=rf"{re.escape(str(paths[1]))} is shorter"):
            take(source, 12)


def packets_of(contents: Sequence[bytes], atomizer: Atomizer, rounds: int = 1) -> list[AtomPacket]:
    """The packets of the shards, `rounds` times over, in one context that is flushed at each shard's end."""
    atomizer.reset()
    return [packet for _ in range(rounds) for shard in contents for packet in atomizer.encode_bytes(shard, reset=False)]


def take(source: StreamingPacketSource, pairs: int) -> list[tuple[AtomPacket, AtomPacket]]:
    return list(itertools.islice(source, pairs))


def assert_same_pairs(pairs: list[tuple[AtomPacket, AtomPacket]], packets: list[AtomPacket]) -> None:
    assert all_plain(current for current, _ in pairs) == all_plain(packets[:-1])
    assert all_plain(target for _, target in pairs) == all_plain(packets[1:])


def test_the_first_pair_does_not_wait_for_a_whole_chunk(
    make_shards: MakeShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A packet takes a thousand times as long as its byte: a chunk of 1 MiB would be minutes of silence."""
    encoded: list[int] = []
    encode_bytes = Atomizer.encode_bytes

    def counted(self: Atomizer, raw: bytes, reset: bool = True, flush: bool = True) -> list[AtomPacket]:
        encoded.append(len(raw))
        return encode_bytes(self, raw, reset=reset, flush=flush)

    monkeypatch.setattr(Atomizer, "encode_bytes", counted)
    source = StreamingPacketSource(Atomizer(1), make_shards(b"words and words " * 10_000), prefetch=False)
    next(source)
    assert sum(encoded) <= 2048
