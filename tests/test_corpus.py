"""Shards as one circular byte string (design 1.1)."""

import io
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomnative import ByteCorpus, resolve_shard_paths
from atomnative.data import corpus as corpus_module
from atomnative.data.corpus import MAX_OPEN_SHARDS, check_same_corpus
from atomnative.errors import CorpusError
from tests.shards import SHARDS, MakeShards, around, on_disk

GB = 1 << 30
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self")


@settings(deadline=None, max_examples=100)
@given(SHARDS, st.integers(0, 300) | st.integers(0, 1 << 62), st.integers(0, 200))
def test_a_read_anywhere_and_of_any_length_is_that_of_the_plain_concatenation(
    contents: list[bytes], pos: int, n: int
) -> None:
    with on_disk(contents) as paths:
        got = ByteCorpus(paths).read(pos, n)
    assert got.dtype == np.uint8
    assert got.shape == (n,)
    assert got.tobytes() == around(contents, pos, n)


@settings(deadline=None, max_examples=50)
@given(SHARDS, st.lists(st.tuples(st.integers(0, 100), st.integers(0, 30)), max_size=8))
def test_a_read_does_not_depend_on_the_reads_before_it(contents: list[bytes], reads: list[tuple[int, int]]) -> None:
    with on_disk(contents) as paths:
        corpus = ByteCorpus(paths)
        for pos, n in reads:
            got = corpus.read(pos, n)
            assert got.tobytes() == around(contents, pos, n)
            got[:] = 0


def test_the_corpus_knows_where_its_shards_lie(make_shards: MakeShards) -> None:
    paths = make_shards(b"abc", b"d", b"efghi")
    corpus = ByteCorpus(paths)
    assert corpus.paths == [str(path) for path in paths]
    assert corpus.sizes == [3, 1, 5]
    assert corpus.starts == [0, 3, 4]
    assert corpus.total == 9
    assert corpus.signature() == {"paths": corpus.paths, "sizes": [3, 1, 5], "total": 9}


def test_shards_are_read_in_the_order_given(make_shards: MakeShards) -> None:
    paths = make_shards(b"abc", b"d", b"efghi")
    assert ByteCorpus(paths[::-1]).read(0, 9).tobytes() == b"efghidabc"


def test_changing_a_signature_does_not_change_the_corpus(make_shards: MakeShards) -> None:
    corpus = ByteCorpus(make_shards(b"abc", b"d"))
    before = corpus.signature()
    corpus.signature()["sizes"].clear()  # type: ignore[union-attr]  # a list, by the test above
    assert corpus.signature() == before


def test_a_closed_corpus_can_be_read_again(make_shards: MakeShards) -> None:
    corpus = ByteCorpus(make_shards(b"abc", b"d"))
    corpus.read(0, 4)
    corpus.close()
    assert corpus.read(2, 4).tobytes() == b"cdab"


@on_linux
def test_more_shards_than_may_be_open_at_once_are_read_all_the_same(tmp_path: Path, make_shards: MakeShards) -> None:
    contents = [f"<{index}>".encode() for index in range(MAX_OPEN_SHARDS + 20)]
    corpus = ByteCorpus(make_shards(*contents))
    assert corpus.read(7, 2 * corpus.total).tobytes() == around(contents, 7, 2 * corpus.total)
    assert 0 < open_files_in(tmp_path) <= MAX_OPEN_SHARDS
    corpus.close()
    assert open_files_in(tmp_path) == 0


@on_linux
def test_eight_gigabytes_cost_no_memory_and_are_right_far_in_at_the_end_and_around_it(tmp_path: Path) -> None:
    huge, small = tmp_path / "huge.bin", tmp_path / "small.bin"
    size, far, block = 8 * GB, 5 * GB + 123, 64 * 1024
    huge.write_bytes(b"first")
    os.truncate(huge, size)
    with huge.open("r+b") as file:
        file.seek(far)
        file.write(b"far in")
        file.seek(size - 4)
        file.write(b"last")
    small.write_bytes(b"small")

    before = resident_bytes()
    corpus = ByteCorpus([huge, small])
    assert corpus.total == size + 5
    for index in range(1024):
        assert not corpus.read(GB // 2 + index * (4 << 20), block).any()
    assert corpus.read(far - 1, 8).tobytes() == b"\0far in\0"
    assert corpus.read(size - 5, 15).tobytes() == b"\0lastsmallfirst"
    assert corpus.read(3 * corpus.total + far, 6).tobytes() == b"far in"
    assert corpus.read(corpus.total - 1, block).tobytes() == b"lfirst".ljust(block, b"\0")
    assert resident_bytes() - before < 16 << 20, "64 MB were read in blocks of 64 kB: none may stay"


def open_files_in(folder: Path) -> int:
    links = (Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd"))
    return sum(os.path.realpath(link).startswith(f"{folder}/") for link in links)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_no_file_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one file"):
        ByteCorpus([])


def test_an_empty_shard_is_named(make_shards: MakeShards) -> None:
    paths = make_shards(b"abc", b"", b"d")
    with pytest.raises(ValueError, match=rf"{re.escape(str(paths[1]))} is empty: leave it out"):
        ByteCorpus(paths)


def test_a_single_byte_in_all_is_refused(make_shards: MakeShards) -> None:
    paths = make_shards(b"a")
    with pytest.raises(ValueError, match=rf"{re.escape(str(paths[0]))}.*at least 2 bytes"):
        ByteCorpus(paths)


def test_two_bytes_are_enough(make_shards: MakeShards) -> None:
    assert ByteCorpus(make_shards(b"a", b"b")).read(1, 4).tobytes() == b"baba"


def test_a_folder_is_refused_with_the_pattern_that_names_its_files(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"{re.escape(str(tmp_path))} is a folder.*--data-glob"):
        ByteCorpus([tmp_path])


def test_a_missing_file_is_named(make_shards: MakeShards, tmp_path: Path) -> None:
    missing = tmp_path / "missing.bin"
    with pytest.raises(ValueError, match=rf"{re.escape(str(missing))} cannot be read.*check the path"):
        ByteCorpus([*make_shards(b"abc"), missing])


@pytest.mark.parametrize("read_before", [False, True], ids=["unread", "already_open"])
def test_a_shard_cut_short_after_opening_is_an_error_that_names_it(make_shards: MakeShards, read_before: bool) -> None:
    paths = make_shards(b"abc", b"defgh", b"ij")
    corpus = ByteCorpus(paths)
    if read_before:
        corpus.read(0, corpus.total)
    os.truncate(paths[1], 2)
    with pytest.raises(CorpusError, match=rf"{re.escape(str(paths[1]))} is shorter than the 5 bytes.*restore"):
        corpus.read(2, 5)
    assert corpus.read(8, 5).tobytes() == b"ijabc"


def test_a_shard_gone_after_opening_is_an_error_that_names_it(make_shards: MakeShards) -> None:
    paths = make_shards(b"abc", b"defgh")
    corpus = ByteCorpus(paths)
    paths[1].unlink()
    with pytest.raises(CorpusError, match=rf"{re.escape(str(paths[1]))} cannot be read.*restore"):
        corpus.read(0, 8)


def test_a_read_that_the_system_gives_in_parts_is_put_together(
    make_shards: MakeShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux gives at most 2 GiB a call, and any system may give less than was asked for."""

    class Sparing(io.FileIO):
        def readinto(self, buffer: Any) -> int | None:
            return super().readinto(memoryview(buffer)[:3])

    monkeypatch.setattr(corpus_module, "open", lambda path, *_, **__: Sparing(path), raising=False)
    assert ByteCorpus(make_shards(b"abcdefgh", b"ij")).read(1, 12).tobytes() == b"bcdefghijabc"


@pytest.mark.parametrize(("pos", "n"), [(-1, 2), (0, -1)])
def test_a_negative_position_or_count_is_refused(make_shards: MakeShards, pos: int, n: int) -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        ByteCorpus(make_shards(b"abc")).read(pos, n)


def test_explicit_files_keep_their_order_and_come_before_the_sorted_matches(tmp_path: Path) -> None:
    b, a, z, y = (touch(tmp_path, name) for name in ("b.txt", "a.txt", "z.bin", "y.bin"))
    assert resolve_shard_paths([b, z, a], str(tmp_path / "*.bin")) == [b, z, a, y]


def test_matches_of_a_pattern_are_sorted_and_folders_left_out(tmp_path: Path) -> None:
    (tmp_path / "folder.txt").mkdir()
    names = ("10.txt", "2.txt", "b.txt", "folder.txt/c.txt", "a.txt", "other.bin")
    found = {name: touch(tmp_path, name) for name in names}
    assert resolve_shard_paths(data_glob=str(tmp_path / "*.txt")) == [
        found[name] for name in ("10.txt", "2.txt", "a.txt", "b.txt")
    ]
    assert found["folder.txt/c.txt"] in resolve_shard_paths(data_glob=str(tmp_path / "**" / "*.txt"))


@pytest.mark.parametrize("as_type", [str, Path])
def test_a_single_file_need_not_be_a_list(tmp_path: Path, as_type: type) -> None:
    a = touch(tmp_path, "a.txt")
    assert resolve_shard_paths(as_type(a)) == [a]


def test_no_file_comes_twice_however_it_is_spelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir()
    a, b = touch(tmp_path, "a.txt"), touch(tmp_path, "b.txt")
    (tmp_path / "link.txt").symlink_to(a)
    monkeypatch.chdir(tmp_path)
    spellings = [Path("a.txt"), a, Path("folder/../a.txt"), tmp_path / "link.txt", b, b]
    assert resolve_shard_paths(spellings, "*.txt") == [Path("a.txt"), b]


def test_a_path_that_gives_nothing_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing.txt"
    with pytest.raises(FileNotFoundError, match=rf"{re.escape(str(missing))} does not exist.*--data"):
        resolve_shard_paths([touch(tmp_path, "a.txt"), missing])


def test_a_pattern_that_gives_nothing_is_named_even_beside_explicit_files(tmp_path: Path) -> None:
    pattern = str(tmp_path / "*.none")
    with pytest.raises(FileNotFoundError, match=rf"{re.escape(pattern)}.*--data-glob"):
        resolve_shard_paths([touch(tmp_path, "a.txt")], pattern)


@pytest.mark.parametrize("data", [None, []])
def test_no_data_at_all_says_how_to_give_some(data: list[str] | None) -> None:
    with pytest.raises(FileNotFoundError, match=r"--data .*--data-glob"):
        resolve_shard_paths(data)


def touch(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_bytes(b"x")
    return path


def test_the_same_corpus_is_accepted(make_shards: MakeShards) -> None:
    paths = make_shards(b"abc", b"defg")
    check_same_corpus(ByteCorpus(paths).signature(), ByteCorpus(paths))


def test_a_changed_size_is_named_with_its_file(make_shards: MakeShards) -> None:
    paths = make_shards(b"abc", b"defg")
    saved = ByteCorpus(paths).signature()
    paths[1].write_bytes(b"de")
    with pytest.raises(ValueError, match=rf"{re.escape(str(paths[1]))} had 4 bytes, now 2"):
        check_same_corpus(saved, ByteCorpus(paths))


def test_the_first_shard_that_differs_is_named(make_shards: MakeShards) -> None:
    a, b, c = make_shards(b"abc", b"defg", b"hi")
    with pytest.raises(ValueError, match=rf"{re.escape(str(b))} then, {re.escape(str(c))} now"):
        check_same_corpus(ByteCorpus([a, b]).signature(), ByteCorpus([a, c]))


def test_another_number_of_shards_is_said(make_shards: MakeShards) -> None:
    a, b, c = make_shards(b"abc", b"defg", b"hi")
    with pytest.raises(ValueError, match="2 files then, 3 files now"):
        check_same_corpus(ByteCorpus([a, b]).signature(), ByteCorpus([a, b, c]))


@pytest.mark.parametrize("saved", [None, {}, {"paths": []}])
def test_what_is_no_signature_is_refused(make_shards: MakeShards, saved: object) -> None:
    with pytest.raises(ValueError, match="signature is unreadable"):
        check_same_corpus(saved, ByteCorpus(make_shards(b"abc")))
