"""Logits to bytes, bytes to text, text to a talk."""

import io
import os
import re
import select
import signal
import subprocess
import sys
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from atomnative import Atomizer, AtomNativeModel, AtomPacket, generate_reply, load_model
from atomnative.checkpoint.file import write_checkpoint
from atomnative.cli.main import main
from atomnative.inference.chat import ASSISTANT_TAG, USER_TAG, Conversation, generate_bytes, sample_text
from atomnative.inference.sampling import sample_byte
from atomnative.inference.text import REPLACEMENT, printable, text_pieces, until
from tests.commands import bare_environment, command

OPTIONS: dict[str, Any] = {"d_model": 6, "n_modes": 5, "max_payload_bytes": 1, "last_atom_readout": True}


class Listening(AtomNativeModel):
    """A model that keeps what it has read, and the logits after each byte."""

    def __init__(self, **changes: Any) -> None:
        torch.manual_seed(4)
        super().__init__(**{**OPTIONS, **changes})
        self.heard = bytearray()
        self.logits: list[torch.Tensor] = []

    def next_byte_logits(self, packet: AtomPacket) -> torch.Tensor:
        logits = super().next_byte_logits(packet)
        self.heard += packet.payload
        self.logits.append(logits[0])
        return logits


class Scripted(Listening):
    """A model that says the same words, over and over, whatever follows the assistant's tag."""

    def __init__(self, says: bytes) -> None:
        super().__init__()
        self.says = says

    def next_byte_logits(self, packet: AtomPacket) -> torch.Tensor:
        super().next_byte_logits(packet)
        spoken = bytes(self.heard).rpartition(ASSISTANT_TAG.encode())[2]
        logits = torch.zeros(1, 256)
        logits[0, self.says[len(spoken) % len(self.says)]] = 100.0
        return logits


@pytest.fixture
def model() -> Listening:
    listening = Listening()
    listening.eval()
    return listening


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with two checkpoints of different weights."""
    folder = tmp_path_factory.mktemp("run")
    for ticks in (7, 40):
        torch.manual_seed(ticks)
        content = AtomNativeModel(**OPTIONS).checkpoint({"step": ticks})
        write_checkpoint(folder / f"atom_native_step_{ticks}_batched.pt", content)
    return folder


@pytest.fixture
def newest(run_folder: Path) -> Path:
    return run_folder / "atom_native_step_40_batched.pt"


# -- a byte from logits -----------------------------------------------------------------------------------------------


@st.composite
def logits_of_all_bytes(draw: st.DrawFn) -> torch.Tensor:
    """Spread a little or a lot, often with ties. [256]"""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    logits = torch.randn(256, generator=generator) * draw(st.sampled_from([0.0, 0.1, 1.0, 10.0, 1000.0]))
    return logits.round() if draw(st.booleans()) else logits


def draw_byte(logits: torch.Tensor, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, seed: int = 0) -> int:
    generator = torch.Generator().manual_seed(seed)
    return sample_byte(logits, temperature=temperature, top_k=top_k, top_p=top_p, generator=generator)


TEMPERATURES = st.floats(0.01, 100.0)
SEEDS = st.integers(0, 1000)


@settings(max_examples=50, deadline=None)
@given(logits=logits_of_all_bytes(), top_k=st.integers(0, 300), top_p=st.floats(0.01, 1.0), seed=SEEDS)
def test_temperature_0_takes_the_likeliest_byte(logits: torch.Tensor, top_k: int, top_p: float, seed: int) -> None:
    assert draw_byte(logits, 0.0, top_k, top_p, seed) == int(logits.argmax())


@settings(max_examples=50, deadline=None)
@given(logits=logits_of_all_bytes(), temperature=TEMPERATURES, seed=SEEDS)
def test_top_k_of_1_takes_a_likeliest_byte_at_any_temperature(
    logits: torch.Tensor, temperature: float, seed: int
) -> None:
    assert logits[draw_byte(logits, temperature, top_k=1, seed=seed)] == logits.max()


@settings(max_examples=50, deadline=None)
@given(logits=logits_of_all_bytes(), temperature=TEMPERATURES, top_p=st.floats(1e-300, 1e-3), seed=SEEDS)
def test_a_tiny_top_p_takes_a_likeliest_byte_at_any_temperature(
    logits: torch.Tensor, temperature: float, top_p: float, seed: int
) -> None:
    assert logits[draw_byte(logits, temperature, top_p=top_p, seed=seed)] == logits.max()


@settings(max_examples=50, deadline=None)
@given(logits=logits_of_all_bytes(), temperature=st.floats(0.0, 1e-9), seed=SEEDS)
def test_a_tiny_temperature_takes_a_likeliest_byte(logits: torch.Tensor, temperature: float, seed: int) -> None:
    assert logits[draw_byte(logits, temperature, seed=seed)] >= logits.max() - 1e-6


@pytest.mark.parametrize("temperature", [1e-300, 1e-310, 5e-324])
def test_the_smallest_temperatures_there_are_take_the_likeliest_byte(temperature: float) -> None:
    logits = torch.linspace(-40.0, 40.0, 256)
    assert draw_byte(logits, temperature) == 255


@settings(max_examples=60, deadline=None)
@given(logits=logits_of_all_bytes(), temperature=TEMPERATURES, top_k=st.integers(1, 300), seed=SEEDS)
def test_top_k_never_draws_a_byte_less_likely_than_the_kth(
    logits: torch.Tensor, temperature: float, top_k: int, seed: int
) -> None:
    least = logits.sort(descending=True).values[min(top_k, 256) - 1]
    assert logits[draw_byte(logits, temperature, top_k=top_k, seed=seed)] >= least


@settings(max_examples=60, deadline=None)
@given(logits=logits_of_all_bytes(), temperature=TEMPERATURES, top_p=st.floats(0.01, 1.0), seed=SEEDS)
def test_top_p_never_draws_a_byte_past_that_probability(
    logits: torch.Tensor, temperature: float, top_p: float, seed: int
) -> None:
    probabilities = torch.softmax(logits.double() / temperature, dim=0)
    drawn = probabilities[draw_byte(logits, temperature, top_p=top_p, seed=seed)]
    likelier = probabilities[probabilities > drawn * (1 + 1e-9)].sum()
    assert likelier < top_p + 1e-9


@settings(max_examples=20, deadline=None)
@given(top_k=st.integers(1, 3), top_p=st.sampled_from([0.4, 0.7, 0.9]))
def test_top_k_and_top_p_together_keep_what_both_keep(top_k: int, top_p: float) -> None:
    logits = torch.full((256,), -torch.inf)
    logits[:4] = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    kept_by_p = {0.4: 1, 0.7: 2, 0.9: 3}[top_p]
    drawn = {draw_byte(logits, 1.0, top_k, top_p, seed) for seed in range(80)}
    assert drawn == set(range(min(top_k, kept_by_p)))


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "expected"),
    [
        (1.0, 0, 1.0, [0.5, 0.3, 0.15, 0.05]),
        (0.5, 0, 1.0, [0.25, 0.09, 0.0225, 0.0025]),
        (1.0, 2, 1.0, [0.5, 0.3, 0.0, 0.0]),
        (1.0, 0, 0.9, [0.5, 0.3, 0.15, 0.0]),
    ],
)
def test_bytes_are_drawn_as_often_as_they_are_likely(
    temperature: float, top_k: int, top_p: float, expected: list[float]
) -> None:
    places = [200, 0, 255, 97]
    logits = torch.full((256,), -1e4)
    logits[places] = torch.tensor([0.5, 0.3, 0.15, 0.05]).log() + 3.0
    generator = torch.Generator().manual_seed(1)
    draws = 3000
    counts = torch.zeros(256)
    for _ in range(draws):
        counts[sample_byte(logits, temperature=temperature, top_k=top_k, top_p=top_p, generator=generator)] += 1
    assert counts[places].sum() == draws
    wanted = torch.tensor(expected) / sum(expected)
    four_sigma = 4 * (wanted * (1 - wanted) / draws).sqrt()
    assert ((counts[places] / draws - wanted).abs() <= four_sigma).all()


def test_drawing_changes_neither_the_logits_nor_the_global_generator() -> None:
    logits, before = torch.randn(256), torch.get_rng_state()
    kept = logits.clone()
    draw_byte(logits, 0.7, 5, 0.5)
    assert torch.equal(logits, kept)
    assert torch.equal(torch.get_rng_state(), before)


# -- bytes to text ----------------------------------------------------------------------------------------------------

ANY_BYTES = st.lists(st.one_of(st.text(max_size=4).map(str.encode), st.binary(max_size=3))).map(b"".join)
"""Text with bytes in it that are none."""


@settings(max_examples=150, deadline=None)
@given(raw=ANY_BYTES)
def test_pieces_join_to_the_text_of_the_bytes_but_for_half_a_character_at_the_end(raw: bytes) -> None:
    whole, shown = raw.decode("utf-8", errors="replace"), "".join(text_pieces(raw))
    assert whole.startswith(shown)
    assert whole[len(shown) :] in ("", REPLACEMENT)


@settings(max_examples=80, deadline=None)
@given(text=st.text())
def test_a_character_is_shown_as_soon_as_it_is_whole_and_never_in_halves(text: str) -> None:
    assert list(text_pieces(text.encode())) == list(text)


@settings(max_examples=80, deadline=None)
@given(text=st.text(max_size=8), last=st.characters(min_codepoint=0x80, exclude_categories=["Cs"]), data=st.data())
def test_half_a_character_at_the_end_is_dropped(text: str, last: str, data: st.DataObject) -> None:
    half = last.encode()[: data.draw(st.integers(1, len(last.encode()) - 1))]
    assert "".join(text_pieces(text.encode() + half)) == text


@st.composite
def cut_text(draw: st.DrawFn) -> tuple[list[str], str]:
    """Pieces of a text, and a stop that is often in it, or nearly."""
    stop = draw(st.one_of(st.text("ab", min_size=1, max_size=4), st.just(f"\n{USER_TAG}")))
    near = st.sampled_from([stop, stop[:-1], stop[: len(stop) // 2 + 1], stop[1:]])
    pieces = draw(st.lists(st.one_of(st.text("ab\nU", max_size=3), near), max_size=10))
    text = "".join(pieces)
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=12)))
    bounds = [0, *cuts, len(text)]
    return [text[a:b] for a, b in pairwise(bounds)], stop


@settings(max_examples=200, deadline=None)
@given(cut=cut_text())
def test_stopping_gives_the_text_before_the_stop_however_the_pieces_fall(cut: tuple[list[str], str]) -> None:
    pieces, stop = cut
    shown = list(until(pieces, stop))
    assert "".join(shown) == "".join(pieces).partition(stop)[0]
    assert "" not in shown


@settings(max_examples=100, deadline=None)
@given(cut=cut_text())
def test_only_what_may_be_the_beginning_of_the_stop_is_held_back(cut: tuple[list[str], str]) -> None:
    pieces, stop = cut
    told = ""

    def tell() -> Iterator[str]:
        nonlocal told
        for piece in pieces:
            yield piece
            # here everything told before has been dealt with
            told += piece
            if stop not in told:
                held = told[len(shown) :]
                assert stop.startswith(held)

    shown = ""
    for piece in until(tell(), stop):
        shown += piece


def test_nothing_is_asked_for_after_the_stop() -> None:
    def endless() -> Iterator[str]:
        yield from ("so.", "\nUti", "lisateur:")
        raise AssertionError("asked for more")

    assert list(until(endless(), "\nUtilisateur:")) == ["so."]


@settings(max_examples=100, deadline=None)
@given(text=st.text(st.characters(max_codepoint=0x120)))
def test_no_control_character_reaches_the_terminal(text: str) -> None:
    shown = printable(text)
    assert len(shown) == len(text)
    for before, after in zip(text, shown, strict=True):
        controls = unicodedata.category(before) == "Cc" and before not in "\n\t"
        assert after == (REPLACEMENT if controls else before)


# -- generation -------------------------------------------------------------------------------------------------------


def read_from_scratch(text: bytes) -> list[torch.Tensor]:
    """The logits after each byte of a text that is read, not written."""
    twin = Listening()
    twin.eval()
    with torch.no_grad():
        for packet in Atomizer(max_span_bytes=1).encode_bytes(text):
            twin.next_byte_logits(packet)
    return twin.logits


def written(model: AtomNativeModel, prompt: bytes, count: int, **settings: Any) -> bytes:
    return bytes(islice(generate_bytes(model, prompt, **settings), count))


@settings(max_examples=10, deadline=None)
@given(prompt=st.binary(min_size=1, max_size=30), seed=SEEDS)
def test_writing_computes_what_reading_the_same_text_computes(prompt: bytes, seed: int) -> None:
    model = Listening()
    model.eval()
    said = written(model, prompt, 12, seed=seed)
    assert bytes(model.heard) == prompt + said
    for ours, theirs in zip(model.logits, read_from_scratch(prompt + said), strict=True):
        assert torch.equal(ours, theirs)


def test_the_bytes_written_are_drawn_from_those_logits(model: Listening) -> None:
    said = written(model, b"def f(", 10, temperature=0)
    after_prompt = model.logits[len(b"def f(") - 1 :]
    assert list(said) == [int(logits.argmax()) for logits in after_prompt[:10]]


@pytest.mark.parametrize("parts", [(b"hello", b" and"), (b"\xff", b"\n"), (b"a", b"b")])
def test_going_on_is_one_long_conversation(model: Listening, parts: tuple[bytes, bytes]) -> None:
    first = written(model, parts[0], 8, seed=1)
    second = written(model, parts[1], 8, seed=2, reset=False)
    whole = parts[0] + first + parts[1] + second
    assert bytes(model.heard) == whole
    for ours, theirs in zip(model.logits, read_from_scratch(whole), strict=True):
        assert torch.equal(ours, theirs)


def test_starting_afresh_forgets_everything_said_before(model: Listening) -> None:
    once = written(model, b"hello", 10, seed=1)
    written(model, b"other words", 10, seed=2, reset=False)
    assert written(model, b"hello", 10, seed=1) == once


def test_the_same_seed_writes_the_same_bytes_and_another_seed_others(model: Listening) -> None:
    first, again, other = (written(model, b"x", 30, seed=seed) for seed in (5, 5, 6))
    assert first == again
    assert first != other


def test_without_a_seed_two_replies_differ(model: Listening) -> None:
    assert written(model, b"x", 40, temperature=3.0, top_k=0) != written(model, b"x", 40, temperature=3.0, top_k=0)


@pytest.mark.parametrize("seed", [None, 3])
def test_the_global_generator_is_left_alone(model: Listening, seed: int | None) -> None:
    before = torch.get_rng_state()
    written(model, b"x", 5, seed=seed)
    sample_text(model, b"x", 5, seed=3)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_model_just_trained_writes_without_dropout_by_its_seed_alone() -> None:
    model = Listening(last_atom_dropout=0.5)
    model.train()
    before = torch.get_rng_state()
    first, again = written(model, b"x", 30, seed=5), written(model, b"x", 30, seed=5)
    assert first == again
    assert torch.equal(torch.get_rng_state(), before)


def test_nothing_written_carries_a_graph(model: Listening) -> None:
    written(model, b"x", 3)
    assert not model.core.state.alpha.requires_grad
    assert all(not logits.requires_grad for logits in model.logits)


def test_a_sample_leaves_the_model_as_it_was(model: Listening) -> None:
    model.train()
    written(model, b"warm", 4)
    alpha, atoms = model.core.state.alpha.clone(), len(model.core.atoms)
    context = model.atomizer.state_dict()
    first, again = (sample_text(model, b"abc", 20, seed=1) for _ in range(2))
    assert first == again
    assert torch.equal(model.core.state.alpha, alpha)
    assert len(model.core.atoms) == atoms
    assert model.atomizer.state_dict() == context
    assert model.training


# -- replies ----------------------------------------------------------------------------------------------------------


def test_a_reply_is_text(model: Listening) -> None:
    assert type(generate_reply(model, "what?", max_packets=12)) is str


def test_the_prompt_is_wrapped_in_tags_unless_it_is_raw(model: Listening) -> None:
    generate_reply(model, "what?", max_packets=0)
    assert not model.heard
    generate_reply(model, "what?", max_packets=1)
    assert model.heard[:-1] == f"{USER_TAG} what?\n{ASSISTANT_TAG}".encode()
    model.heard.clear()
    generate_reply(model, "what?", max_packets=1, user_tag="Q:", assistant_tag="A:")
    assert model.heard[:-1] == b"Q: what?\nA:"
    model.heard.clear()
    generate_reply(model, "what?", max_packets=1, raw=True)
    assert model.heard[:-1] == b"what?"


@pytest.mark.parametrize("raw", [False, True])
def test_an_empty_prompt_gets_a_reply(model: Listening, raw: bool) -> None:
    assert isinstance(generate_reply(model, "", max_packets=5, raw=raw), str)
    assert len(model.heard) > 5


def test_a_prompt_of_bytes_that_are_no_text_is_read_as_those_bytes(model: Listening) -> None:
    raw = b"caf\xe9 \xff\xfe \xc3"
    generate_reply(model, raw.decode("utf-8", "surrogateescape"), max_packets=1, raw=True)
    assert model.heard[:-1] == raw


@pytest.mark.parametrize(
    ("bounds", "length"),
    [
        ({"max_packets": 7}, 7),
        ({"max_packets": 0}, 0),
        ({"max_length": 5}, 5),
        ({"max_length": 0}, 0),
        ({"max_packets": 7, "max_length": 3}, 3),
        ({"max_packets": 3, "max_length": 7}, 3),
    ],
)
@pytest.mark.parametrize("raw", [False, True])
def test_a_reply_ends_at_its_bounds(bounds: dict[str, Any], length: int, raw: bool) -> None:
    assert generate_reply(Scripted(b"abcdefghij"), ASSISTANT_TAG, raw=raw, **bounds) == "abcdefghij"[:length]


def test_a_bound_in_the_middle_of_a_character_drops_it() -> None:
    assert generate_reply(Scripted("né à l'été".encode()), "", max_length=2) == "n"


@pytest.mark.parametrize(
    ("says", "reply"),
    [
        ("Yes.\nUtilisateur: and?", "Yes."),
        ("\nUtilisateur:", ""),
        ("a\nUtil b\nUtilisateur:", "a\nUtil b"),
        ("\n\nUtilisateur:", "\n"),
        ("said Utilisateur: inside.\nUtilisateur:", "said Utilisateur: inside."),
    ],
)
def test_a_reply_ends_where_the_model_begins_the_next_turn(says: str, reply: str) -> None:
    assert generate_reply(Scripted(says.encode()), "go", max_packets=200) == reply


def test_another_user_tag_ends_the_reply_too() -> None:
    assert generate_reply(Scripted(b"Yes.\nQ: and?"), "go", user_tag="Q:") == "Yes."


def test_a_raw_reply_goes_past_the_tags() -> None:
    model = Scripted(b"Yes.\nUtilisateur: and?")
    assert generate_reply(model, ASSISTANT_TAG, max_packets=22, raw=True) == "Yes.\nUtilisateur: and?"


def test_the_pieces_of_a_reply_are_the_reply(model: Listening) -> None:
    pieces = list(Conversation(model).reply("go", max_packets=40, seed=2))
    assert len(pieces) > 1
    assert "".join(pieces) == generate_reply(model, "go", max_packets=40, seed=2)


@pytest.mark.parametrize(
    ("bad", "culprit"),
    [
        ({"temperature": -0.1}, "temperature.*-0.1"),
        ({"temperature": float("nan")}, "temperature.*nan"),
        ({"temperature": float("inf")}, "temperature.*inf"),
        ({"top_k": -1}, "top_k.*-1"),
        ({"top_p": 0.0}, r"top_p.*0\.0"),
        ({"top_p": 1.5}, r"top_p.*1\.5"),
        ({"top_p": float("nan")}, "top_p.*nan"),
        ({"max_packets": -1}, "max_packets.*-1"),
        ({"max_length": -2}, "max_length.*-2"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_setting_out_of_its_domain_is_refused_by_its_name_before_anything_is_read(
    model: Listening, bad: dict[str, Any], culprit: str
) -> None:
    with pytest.raises(ValueError, match=culprit):
        generate_reply(model, "go", **bad)
    assert not model.heard


# -- models from files ------------------------------------------------------------------------------------------------


def test_a_model_is_loaded_from_a_file_or_from_the_newest_of_a_run_folder(run_folder: Path, newest: Path) -> None:
    from_file, from_folder = load_model(newest), load_model(str(run_folder))
    older = load_model(run_folder / "atom_native_step_7_batched.pt")
    assert isinstance(from_folder, AtomNativeModel)
    replies = [generate_reply(model, "go", max_packets=30, seed=1) for model in (from_file, from_folder, older)]
    assert replies[0] == replies[1]
    assert replies[0] != replies[2]


def test_a_loaded_model_is_ready_to_talk_and_not_in_training(newest: Path) -> None:
    model = load_model(newest)
    assert not model.training
    assert isinstance(generate_reply(model, "go", max_packets=3), str)


# -- the command ------------------------------------------------------------------------------------------------------


def chat(*arguments: str | Path, given: bytes | None = None) -> tuple[int, str, str]:
    """`atomnative chat` to its end, in a process of its own without HOME and terminal: exit code, stdout, stderr."""
    done = subprocess.run(
        command("chat", *arguments), input=given, env=bare_environment(), capture_output=True, timeout=100, check=False
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_the_command_says_what_the_library_says(newest: Path) -> None:
    said = printable(generate_reply(load_model(newest), "né?", max_packets=60, seed=3))
    code, out, err = chat("--checkpoint", newest, "--prompt", "né?", "--max-packets", "60", "--seed", "3")
    assert (code, out, err) == (0, f"{said}\n", "")


def test_a_reply_streams_before_it_is_finished_and_ctrl_c_ends_it(run_folder: Path) -> None:
    arguments = command("chat", "--checkpoint", run_folder, "--prompt", "hi", "--raw", "--max-packets", "1000000000")
    with subprocess.Popen(arguments, env=bare_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            assert len(process.stdout.read(20)) == 20
            assert process.poll() is None
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert err.decode() == "atomnative: interrupted\n"


@pytest.mark.parametrize("temperature", ["0", "1"])
def test_a_field_that_outgrows_its_numbers_ends_the_reply_with_one_line(run_folder: Path, temperature: str) -> None:
    # With neither leak nor limiter the field of this model grows by 2.6 % a tick.
    arguments = ("--checkpoint", run_folder, "--prompt", "hi", "--raw", "--max-packets", "10000")
    code, out, err = chat(*arguments, "--temperature", temperature)
    assert (code, out[-1]) == (2, "\n")
    assert len(out) > 1000
    assert re.fullmatch(r"atomnative: the model's logits are not finite .*\(--field-max-rms\)\n", err)


def test_a_talk_over_a_pipe_answers_each_line_and_ends_with_them(run_folder: Path) -> None:
    code, out, err = chat(
        *("--checkpoint", run_folder, "--interactive", "--max-packets", "6", "--temperature", "0"),
        given=b"one\ntwo\n",
    )
    assert (code, err) == (0, "")
    assert out.count(ASSISTANT_TAG) == 2
    first = generate_reply(load_model(run_folder), "one", max_packets=6, temperature=0)
    assert out.startswith(f"{USER_TAG} {ASSISTANT_TAG}{printable(first)}\n{USER_TAG} {ASSISTANT_TAG}")


Typed = Callable[[Sequence[str]], None]


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Typed:
    """Gives the command a user who types these lines and then ends the talk."""

    def type_lines(lines: Sequence[str]) -> None:
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))

    return type_lines


def overheard(monkeypatch: pytest.MonkeyPatch, says: bytes | None = None) -> bytearray:
    """All that any model reads from now on; with `says`, each reply is that, again and again."""
    heard = bytearray()
    before = AtomNativeModel.next_byte_logits

    def listen(self: AtomNativeModel, packet: AtomPacket) -> torch.Tensor:
        heard.extend(packet.payload)
        logits = before(self, packet)
        if says is not None:
            spoken = bytes(heard).rpartition(ASSISTANT_TAG.encode())[2]
            logits = torch.zeros_like(logits)
            logits[0, says[len(spoken) % len(says)]] = 100.0
        return logits

    monkeypatch.setattr(AtomNativeModel, "next_byte_logits", listen)
    return heard


@pytest.mark.parametrize(
    ("says", "bound", "reply"),
    [("Yes.", 8, "Yes.Yes."), ("Yes.\nUtilisateur: no", 100, "Yes.")],
    ids=["a reply that ends at its bound", "a reply that ends where the next turn begins"],
)
def test_a_talk_is_read_as_turns_that_each_begin_on_a_line_with_the_tag(
    newest: Path,
    typed: Typed,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    says: str,
    bound: int,
    reply: str,
) -> None:
    typed(["one", "two"])
    heard = overheard(monkeypatch, says.encode())
    main(["chat", "--checkpoint", str(newest), "--interactive", "--max-packets", str(bound), "--temperature", "0"])
    talk = f"{USER_TAG} one\n{ASSISTANT_TAG}{reply}\n{USER_TAG} two\n{ASSISTANT_TAG}{reply}"
    assert heard.decode().removesuffix(f"\n{USER_TAG}") == talk
    assert capsys.readouterr().out.count(f"{ASSISTANT_TAG}{reply}\n") == 2


def test_a_raw_talk_is_read_as_typed(
    newest: Path, typed: Typed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(["one", "two"])
    heard = overheard(monkeypatch)
    main(["chat", "--checkpoint", str(newest), "--interactive", "--raw", "--max-packets", "2", "--temperature", "0"])
    assert heard.startswith(b"one")
    assert heard[5:8] == b"two"
    assert len(heard) == 10
    assert ASSISTANT_TAG not in capsys.readouterr().out


def test_a_seed_decides_a_whole_talk_and_each_of_its_replies_draws_anew(
    newest: Path, typed: Typed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(AtomNativeModel, "next_byte_logits", lambda self, packet: torch.zeros(1, 256))
    talks = []
    for _ in range(2):
        typed(["one", "one"])
        main(["chat", "--checkpoint", str(newest), "--interactive", "--raw", "--seed", "3", "--top-k", "0"])
        talks.append(capsys.readouterr().out)
    first, second, end = talks[0].removeprefix("> ").split("\n> ")
    assert first != second
    assert end == "\n"
    assert talks[0] == talks[1]


def test_a_line_typed_that_is_no_text_is_answered_too(
    newest: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    strict = io.TextIOWrapper(io.BytesIO(b"caf\xe9\n"), encoding="utf-8", errors="strict")
    monkeypatch.setattr(sys, "stdin", strict)
    heard = overheard(monkeypatch)
    main(["chat", "--checkpoint", str(newest), "--interactive", "--max-packets", "2"])
    assert b"caf\xe9" in heard
    assert ASSISTANT_TAG in capsys.readouterr().out


# -- a talk in a terminal ---------------------------------------------------------------------------------------------

IN_A_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that Ctrl-C is a signal
os.execv(sys.argv[1], sys.argv[1:])
"""


class Terminal:
    """A command that believes to run in a terminal."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._ours, theirs = os.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", IN_A_TERMINAL, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=bare_environment(),
            start_new_session=True,
        )
        os.close(theirs)

    def type(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def see(self, wanted: bytes, more: int = 0) -> bytes:
        """What is shown until `wanted` and `more` bytes after it have been."""
        seen, give_up = b"", time.monotonic() + 60
        while wanted not in seen or len(seen) - seen.index(wanted) < len(wanted) + more:
            ready, _, _ = select.select([self._ours], [], [], max(0.0, give_up - time.monotonic()))
            assert ready, f"waited in vain for {wanted!r} in {seen!r}"
            try:
                seen += os.read(self._ours, 4096)
            except OSError:  # how a terminal says that the other side has gone
                raise AssertionError(f"the command ended before {wanted!r}, with {seen!r}") from None
        return seen

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a pseudo-terminal")
def test_ctrl_c_ends_the_reply_and_not_the_talk_and_ctrl_d_ends_the_talk(run_folder: Path) -> None:
    prompt, reply = f"{USER_TAG} ".encode(), ASSISTANT_TAG.encode()
    terminal = Terminal(command("chat", "--checkpoint", run_folder, "--interactive", "--max-packets", "1000000000"))
    try:
        terminal.see(prompt)
        for line in (b"one\n", b"two\n"):
            terminal.type(line)
            terminal.see(reply, more=20)
            terminal.type(b"\x03")
            assert b"Traceback" not in terminal.see(prompt)
        terminal.type(b"\x04")
        assert terminal.process.wait(timeout=60) == 0
    finally:
        terminal.close()
