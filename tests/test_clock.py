"""When things happen in a run, and what its progress lines say."""

import itertools
import math
import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomnative.training.clock import is_due, next_multiple, next_window_end
from atomnative.training.report import ProgressLines, human_bytes, human_time
from atomnative.training.schedule import Schedule, learning_rate_factor

PLANS = st.fixed_dictionaries(
    {
        "window": st.integers(1, 40),
        "total": st.integers(1, 300),
        "episode_length": st.one_of(st.just(0), st.integers(1, 120)),
        "ckpt_every": st.one_of(st.just(0), st.integers(1, 120)),
    }
)


def ends_from(tick: int, plan: dict[str, int]) -> list[int]:
    """The ends of all windows after `tick`."""
    ends: list[int] = []
    while tick < plan["total"]:
        tick = next_window_end(tick, **plan)
        ends.append(tick)
    return ends


# -- windows ----------------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(plan=PLANS)
def test_windows_move_forward_and_are_never_longer_than_the_window(plan: dict[str, int]) -> None:
    ends = ends_from(0, plan)
    lengths = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    assert all(1 <= length <= plan["window"] for length in lengths)


@settings(max_examples=100, deadline=None)
@given(plan=PLANS)
def test_episodes_checkpoints_and_the_run_end_where_a_window_ends(plan: dict[str, int]) -> None:
    ends, total = ends_from(0, plan), plan["total"]
    assert ends[-1] == total
    for every in (plan["episode_length"], plan["ckpt_every"]):
        if every:
            assert set(range(every, total + 1, every)) <= set(ends)


@settings(max_examples=100, deadline=None)
@given(plan=PLANS)
def test_a_window_is_cut_short_only_by_an_episode_a_checkpoint_or_the_end(plan: dict[str, int]) -> None:
    start = 0
    for end in ends_from(0, plan):
        if end - start < plan["window"]:
            assert end == plan["total"] or is_due(end, plan["episode_length"]) or is_due(end, plan["ckpt_every"])
        start = end


@settings(max_examples=100, deadline=None)
@given(plan=PLANS, data=st.data())
def test_a_run_begun_again_at_a_window_end_has_the_same_ends_from_there_on(
    plan: dict[str, int], data: st.DataObject
) -> None:
    ends = ends_from(0, plan)
    stop = data.draw(st.sampled_from(ends))
    assert ends_from(stop, plan) == ends[ends.index(stop) + 1 :]


@settings(max_examples=100, deadline=None)
@given(tick=st.integers(0, 1000), every=st.integers(1, 50))
def test_the_next_time_is_the_first_due_one_after_now(tick: int, every: int) -> None:
    following = next_multiple(tick, every)
    assert following is not None
    assert [later for later in range(tick + 1, following + 1) if is_due(later, every)] == [following]


@settings(max_examples=100, deadline=None)
@given(tick=st.integers(0, 10**12), every=st.integers(1, 10**6))
def test_something_is_due_at_every_multiple_but_not_at_the_start(tick: int, every: int) -> None:
    assert is_due(tick, every) == (tick > 0 and tick % every == 0)


@pytest.mark.parametrize("tick", [0, 1, 10**9])
def test_an_interval_of_0_is_never_due(tick: int) -> None:
    assert not is_due(tick, 0)
    assert next_multiple(tick, 0) is None


# -- learning rate ----------------------------------------------------------------------------------------------------

SCHEDULES: list[Schedule] = ["constant", "cosine"]


@settings(max_examples=100, deadline=None)
@given(schedule=st.sampled_from(SCHEDULES), total=st.integers(1, 5000), warmup=st.integers(0, 6000), data=st.data())
def test_the_rate_is_positive_until_the_end_and_never_above_its_peak(
    schedule: Schedule, total: int, warmup: int, data: st.DataObject
) -> None:
    tick = data.draw(st.integers(0, total - 1))
    assert 0 < learning_rate_factor(tick, warmup_ticks=warmup, total_ticks=total, schedule=schedule) <= 1


@settings(max_examples=60, deadline=None)
@given(warmup=st.integers(1, 500), total=st.integers(1, 2000))
def test_the_constant_rate_rises_in_a_line_to_its_peak_and_stays(warmup: int, total: int) -> None:
    factors = [
        learning_rate_factor(tick, warmup_ticks=warmup, total_ticks=total, schedule="constant")
        for tick in range(warmup + 5)
    ]
    assert factors[:warmup] == pytest.approx([(tick + 1) / warmup for tick in range(warmup)])
    assert factors[warmup - 1 :] == [1.0] * 6


@settings(max_examples=60, deadline=None)
@given(total=st.integers(1, 2000))
def test_the_cosine_falls_from_the_peak_to_0_at_the_last_tick(total: int) -> None:
    factors = [
        learning_rate_factor(tick, warmup_ticks=0, total_ticks=total, schedule="cosine") for tick in range(total + 1)
    ]
    assert factors[0] == 1
    assert factors[total] == pytest.approx(0, abs=1e-12)
    assert all(earlier >= later for earlier, later in itertools.pairwise(factors))
    assert [a + b for a, b in zip(factors, reversed(factors), strict=True)] == pytest.approx([1.0] * (total + 1))


@settings(max_examples=60, deadline=None)
@given(tick=st.integers(0, 3000), warmup=st.integers(0, 500), total=st.integers(1, 2000))
def test_the_warm_up_multiplies_the_cosine(tick: int, warmup: int, total: int) -> None:
    def factor(warmup_ticks: int, schedule: Schedule) -> float:
        return learning_rate_factor(tick, warmup_ticks=warmup_ticks, total_ticks=total, schedule=schedule)

    assert factor(warmup, "cosine") == pytest.approx(factor(warmup, "constant") * factor(0, "cosine"), abs=1e-12)


# -- progress lines ---------------------------------------------------------------------------------------------------


class Clock:
    """A clock that moves when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def progress(clock: Clock, say: Callable[[str], None], *, tick: int = 0, log_every: int = 10) -> ProgressLines:
    return ProgressLines(tick=tick, total=100, batch_size=4, log_every=log_every, say=say, clock=clock)


def test_a_line_gives_place_bits_rate_and_time_left() -> None:
    clock, said = Clock(), []
    lines = progress(clock, said.append)
    for _ in range(2):
        clock.now += 1.0
        lines.window(5, 3 * math.log(2))
    # 40 bytes in 2 s; 90 ticks of 4 bytes are left
    assert said == ["tick 10/100  40 B  3.000 bits/byte  20 B/s  0:18 left"]


def test_the_bits_are_the_mean_over_ticks_not_over_windows() -> None:
    clock, said = Clock(), []
    lines = progress(clock, said.append)
    clock.now += 1.0
    lines.window(1, 8 * math.log(2))
    lines.window(9, 2 * math.log(2))
    assert "  2.600 bits/byte  " in said[0]


def test_each_line_is_of_its_own_ticks_and_its_own_time() -> None:
    clock, said = Clock(), []
    lines = progress(clock, said.append)
    for bits, seconds in ((4, 2.0), (1, 1.0)):
        clock.now += seconds
        lines.window(10, bits * math.log(2))
    assert said == [
        "tick 10/100  40 B  4.000 bits/byte  20 B/s  0:18 left",
        "tick 20/100  80 B  1.000 bits/byte  40 B/s  0:08 left",
    ]


def test_a_resumed_run_counts_on_but_its_rate_is_of_this_start() -> None:
    clock, said = Clock(), []
    lines = progress(clock, said.append, tick=60)
    clock.now += 4.0
    lines.window(20, math.log(2))
    assert said == ["tick 80/100  320 B  1.000 bits/byte  20 B/s  0:04 left"]


def test_what_a_checkpoint_took_is_not_in_the_rate() -> None:
    clock, said = Clock(), []
    lines = progress(clock, said.append)
    clock.now += 2.0
    lines.window(10, math.log(2))
    lines.finish()
    clock.now += 500.0
    lines.restart_clock()
    clock.now += 2.0
    lines.window(10, math.log(2))
    assert [line.split("  ")[3] for line in said] == ["20 B/s", "20 B/s"]


def test_the_last_line_holds_what_was_left_and_comes_once() -> None:
    clock, said = Clock(), []
    lines = progress(clock, said.append)
    clock.now += 1.0
    lines.window(3, math.log(2))
    assert said == []
    lines.finish()
    lines.finish()
    assert said == ["tick 3/100  12 B  1.000 bits/byte  12 B/s  0:32 left"]


def test_a_clock_that_stood_still_is_no_error() -> None:
    said: list[str] = []
    progress(Clock(), said.append).window(10, math.log(2))
    assert len(said) == 1
    assert said[0].endswith("  0:00 left")


# -- numbers for people -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (53_700.0, "53.7 kB"),
        (1_234_567, "1.23 MB"),
        (8_000_000, "8 MB"),
        (70_000_000_000, "70 GB"),
        (1_234_000_000_000, "1,234 GB"),
    ],
)
def test_bytes_are_shown_in_the_unit_that_fits(count: float, text: str) -> None:
    assert human_bytes(count) == text


UNITS = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}


@settings(max_examples=300, deadline=None)
@given(count=st.one_of(st.floats(0, 1e15), st.integers(0, 10**15), st.floats(-6, 6).map(lambda x: 10**9 * 10**x)))
def test_bytes_are_shown_as_plain_numbers_near_the_true_one(count: float) -> None:
    shown = re.fullmatch(r"([\d,]+(?:\.\d+)?) (B|kB|MB|GB)", human_bytes(count))
    assert shown, human_bytes(count)
    assert float(shown[1].replace(",", "")) * UNITS[shown[2]] == pytest.approx(count, rel=0.006, abs=0.5)


@pytest.mark.parametrize("count", [999_600, 999_999, 999_600_000, 999_600_000_000])
def test_a_count_just_below_the_next_unit_is_a_plain_number_too(count: int) -> None:
    assert re.fullmatch(r"[\d,.]+ (kB|MB|GB)", human_bytes(count)), human_bytes(count)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0:00"),
        (-3, "0:00"),
        (59.4, "0:59"),
        (59.6, "1:00"),
        (185.0, "3:05"),
        (3661, "1:01:01"),
        (90_000, "25:00:00"),
    ],
)
def test_times_are_shown_as_minutes_or_hours(seconds: float, text: str) -> None:
    assert human_time(seconds) == text


@settings(max_examples=100, deadline=None)
@given(seconds=st.floats(0, 1e9))
def test_a_time_shown_is_the_time_to_the_second(seconds: float) -> None:
    parts = human_time(seconds).split(":")
    assert all(len(part) == 2 and int(part) < 60 for part in parts[1:])
    assert sum(int(part) * 60**power for power, part in enumerate(reversed(parts))) == round(seconds)
