"""A run stopped and resumed, however often and however rudely, equals one never stopped, bit for bit."""

import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from atomnative import BatchedByteStream, ByteCorpus
from atomnative.checkpoint.folder import newest_checkpoint
from atomnative.training.config import SingleConfig, TrainConfig
from atomnative.training.run import run_batched
from atomnative.training.windows import BatchedWindows, WindowLoss
from tests.commands import TINY as TINY_FLAGS
from tests.commands import TINY_STACK as TINY_STACK_FLAGS
from tests.commands import bare_environment, command
from tests.runs import TINY, TINY_SINGLE, TINY_SINGLE_STACK, TINY_STACK, checkpoint, differences, train, train_single


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    """Two shards that the three streams go round more than once in 160 ticks."""
    paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
    paths[0].write_bytes(bytes(random.Random(1).choices(b"abcde \n.", k=83)))
    paths[1].write_bytes("né à l'été ".encode() * 4)
    return paths


EACH = pytest.mark.parametrize("tiny", [TINY, TINY_STACK], ids=["atom", "stack"])


@EACH
def test_one_run_equals_two_halves(tmp_path: Path, shards: list[Path], tiny: TrainConfig) -> None:
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    train(whole, shards, tiny)
    train(halves, shards, tiny, run_ticks=80)
    torch.manual_seed(999)  # what a new process would have in its generator
    said = train(halves, shards, tiny)
    assert "restored optimizer state" in said
    assert differences(checkpoint(whole, 160), checkpoint(halves, 160)) == []


@EACH
def test_a_chain_of_five_stops_and_resumes_equals_none(tmp_path: Path, shards: list[Path], tiny: TrainConfig) -> None:
    whole, chain = tmp_path / "whole", tmp_path / "chain"
    train(whole, shards, tiny)
    starts = 0
    while not (chain / "atom_native_step_160_batched.pt").exists():
        torch.manual_seed(starts)
        train(chain, shards, tiny, run_ticks=27)
        starts += 1
    assert starts >= 6
    assert differences(checkpoint(whole, 160), checkpoint(chain, 160)) == []


def test_a_stop_in_the_middle_of_a_window_waits_for_its_end(tmp_path: Path, shards: list[Path]) -> None:
    train(tmp_path / "run", shards, run_ticks=10)
    assert [path.name for path in (tmp_path / "run").glob("*.pt")] == ["atom_native_step_14_batched.pt"]


@pytest.mark.parametrize("field_bptt", [1, 64])
def test_any_window_length_resumes_the_stack_exactly(tmp_path: Path, shards: list[Path], field_bptt: int) -> None:
    settings: dict[str, Any] = {"field_bptt": field_bptt, "total_ticks": 90}
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    train(whole, shards, TINY_STACK, **settings)
    train(halves, shards, TINY_STACK, run_ticks=33, **settings)
    train(halves, shards, TINY_STACK, **settings)
    assert differences(checkpoint(whole, 90), checkpoint(halves, 90)) == []


@pytest.mark.parametrize("field_bptt", [0, 1, 64])
def test_any_window_length_resumes_exactly(tmp_path: Path, shards: list[Path], field_bptt: int) -> None:
    settings: dict[str, Any] = {"field_bptt": field_bptt, "field_leak_learnable": field_bptt > 0, "total_ticks": 90}
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    train(whole, shards, **settings)
    train(halves, shards, run_ticks=33, **settings)
    train(halves, shards, **settings)
    assert differences(checkpoint(whole, 90), checkpoint(halves, 90)) == []


@pytest.mark.parametrize("tiny", [TINY_SINGLE, TINY_SINGLE_STACK], ids=["atom", "stack"])
def test_the_single_stream_trainer_resumes_exactly(tmp_path: Path, shards: list[Path], tiny: SingleConfig) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train_single(whole, shards, tiny, steps=140)
    for steps in (35, 36, 69):  # the whole run's windows end there too
        torch.manual_seed(steps)
        train_single(parts, shards, tiny, steps=steps)
    assert differences(checkpoint(whole, 140, batched=False), checkpoint(parts, 140, batched=False)) == []


def test_a_finished_run_has_nothing_left_to_do_and_a_longer_one_goes_on(tmp_path: Path, shards: list[Path]) -> None:
    constant: dict[str, Any] = {"lr_schedule": "constant"}
    whole, longer = tmp_path / "whole", tmp_path / "longer"
    train(whole, shards, **constant)
    train(longer, shards, total_ticks=60, **constant)
    before = checkpoint(longer, 60)
    assert any("nothing left to do" in line for line in train(longer, shards, total_ticks=60, **constant))
    assert differences(before, checkpoint(longer, 60)) == []
    train(longer, shards, **constant)
    assert differences(checkpoint(whole, 160), checkpoint(longer, 160)) == []


class Crash(Exception):
    """Stands for a power cut: nothing is saved after it."""


@EACH
def test_over_a_chain_of_crashes_every_byte_is_learned_from_exactly_as_often_as_in_an_unbroken_run(
    tmp_path: Path, shards: list[Path], monkeypatch: pytest.MonkeyPatch, tiny: TrainConfig
) -> None:
    taken: list[torch.Tensor] = []  # the absolute positions of each window learned from, [K, B]
    crash_at = random.Random(7)
    patience = [10**9]
    advance = BatchedWindows.advance

    def logged(self: BatchedWindows, ticks: int) -> WindowLoss:
        patience[0] -= 1
        if patience[0] < 0:
            raise Crash
        stream = self._stream
        taken.append(torch.from_numpy(stream.pos)[None, :] + torch.arange(ticks)[:, None])
        return advance(self, ticks)

    monkeypatch.setattr(BatchedWindows, "advance", logged)
    train(tmp_path / "whole", shards, tiny, ckpt_every=30)
    unbroken, taken[:] = torch.cat(taken), []

    broken = tmp_path / "broken"
    kept = torch.empty(0, 3, dtype=torch.int64)
    crashes = 0
    while True:
        patience[0] = crash_at.randint(1, 9)
        try:
            train(broken, shards, tiny, ckpt_every=30)
        except Crash:
            crashes += 1
        newest = max((int(path.name.split("_")[3]) for path in broken.glob("*.pt")), default=0)
        kept = torch.cat([kept, *taken])[:newest]  # what came after the last checkpoint is lost with it
        taken.clear()
        if newest == 160:
            break
    assert crashes >= 3
    total = ByteCorpus(shards).total
    assert Counter((kept % total).flatten().tolist()) == Counter((unbroken % total).flatten().tolist())
    assert torch.equal(kept, unbroken)
    assert differences(checkpoint(tmp_path / "whole", 160), checkpoint(broken, 160)) == []


def long_run(folder: Path, shard: Path, tiny: Sequence[str] = TINY_FLAGS) -> list[str]:
    return command(
        *("train", "--data", shard, "--output-dir", folder, "-B", "3", "--total-ticks", "3000", "--ckpt-every", "150"),
        *("--episode-length", "400", "--no-samples", *tiny),
    )


@pytest.mark.parametrize("tiny", [(*TINY_FLAGS, "--last-atom-dropout", "0.5"), TINY_STACK_FLAGS], ids=["atom", "stack"])
def test_a_run_killed_at_random_moments_and_restarted_until_done_equals_one_never_killed(
    tmp_path: Path, shards: list[Path], tiny: Sequence[str]
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    environment = bare_environment()
    subprocess.run(long_run(whole, shards[0], tiny), env=environment, check=True, capture_output=True)
    moments, kills = random.Random(3), 0
    last = killed / "atom_native_step_3000_batched.pt"
    while not last.exists():
        process = subprocess.Popen(long_run(killed, shards[0], tiny), env=environment, stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()  # it has begun
        if kills < 4:
            time.sleep(moments.uniform(0.0, 1.0))
            process.kill()
            kills += 1
        process.stdout.read()
        process.stdout.close()
        assert process.wait() in (0, -signal.SIGKILL)
    assert kills == 4
    assert differences(checkpoint(whole, 3000), checkpoint(killed, 3000)) == []
    assert list(killed.glob(".*.tmp")) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_run_at_a_window_end_with_a_checkpoint_and_exit_code_0(
    tmp_path: Path, shards: list[Path], number: signal.Signals
) -> None:
    folder = tmp_path / "run"
    endless = [*long_run(folder, shards[0]), "--total-ticks", "100000000", "--ckpt-every", "0", "--log-every", "7"]
    process = subprocess.Popen(endless, env=bare_environment(), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("tick"):
            break
    process.send_signal(number)
    rest = process.stdout.read()
    process.stdout.close()
    assert process.wait() == 0
    assert "stopped at tick" in rest
    assert len(list(folder.glob("atom_native_step_*_batched.pt"))) == 1


def test_a_run_whose_shard_is_cut_short_under_it_keeps_what_it_has_learned(tmp_path: Path) -> None:
    shard = tmp_path / "long.txt"
    shard.write_bytes(b"Some words, and a few more.\n" * 4000)
    said: list[str] = []
    config = replace(
        TINY, data=(str(shard),), output_dir=tmp_path / "run", total_ticks=10**6, ckpt_every=0, log_every=7
    )

    def say(line: str) -> None:
        said.append(line)
        if len(said) == 5:
            shard.write_bytes(b"")

    with pytest.raises(ValueError, match=r"long\.txt is shorter than"):
        run_batched(config, None, say)
    (path,) = (tmp_path / "run").glob("*.pt")
    assert int(path.name.split("_")[3]) > 4000, "one read of 4096 bytes for each stream was learned from"
    assert newest_checkpoint(tmp_path / "run", said.append) is not None


def test_a_run_whose_output_goes_away_keeps_what_it_has_learned(tmp_path: Path, shards: list[Path]) -> None:
    said: list[str] = []

    def say(line: str) -> None:
        if line.startswith("tick 49/"):  # after the window, before the next
            raise BrokenPipeError
        said.append(line)

    config = replace(TINY, data=tuple(map(str, shards)), output_dir=tmp_path / "run", ckpt_every=0, log_every=7)
    with pytest.raises(BrokenPipeError):
        run_batched(config, None, say)
    assert [path.name for path in (tmp_path / "run").glob("*.pt")] == ["atom_native_step_49_batched.pt"]
    train(tmp_path / "run", shards, ckpt_every=0)
    train(tmp_path / "whole", shards, ckpt_every=0)
    left, right = checkpoint(tmp_path / "run", 160), checkpoint(tmp_path / "whole", 160)
    for content in (left, right):
        content["training"].pop("settings")
    assert differences(left, right) == []


def test_resuming_on_a_changed_corpus_is_refused_naming_the_shard(tmp_path: Path, shards: list[Path]) -> None:
    train(tmp_path / "run", shards, run_ticks=20)
    shards[1].write_bytes(shards[1].read_bytes() + b"more")
    with pytest.raises(ValueError, match=r"corpus changed.*b\.txt"):
        train(tmp_path / "run", shards)


def test_another_number_of_streams_is_refused_naming_both(tmp_path: Path, shards: list[Path]) -> None:
    train(tmp_path / "run", shards, run_ticks=20)
    with pytest.raises(ValueError, match=r"3 streams, this run 5: use batch size 3"):
        train(tmp_path / "run", shards, batch_size=5)


def test_reading_ahead_does_not_move_the_saved_position(shards: list[Path]) -> None:
    stream = BatchedByteStream(ByteCorpus(shards), 2, chunk=50)
    stream.next_window(3)
    assert stream.state_dict()["pos"].tolist() == [3, 3 + ByteCorpus(shards).total // 2]
