"""Checkpoints: whole or not at all, plain data, names that last, and loaded by every tool."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from atomnative import AtomNativeModel, StackModel, generate_reply, load_model
from atomnative.checkpoint import file as checkpoint_file
from atomnative.checkpoint.file import read_checkpoint, write_checkpoint
from atomnative.checkpoint.folder import newest_checkpoint, ticks_of
from atomnative.errors import CheckpointError, RunFolderError
from atomnative.model.protocol import ByteModel
from atomnative.training.config import SingleConfig, TrainConfig
from tests.forms import random_packets
from tests.runs import TINY, TINY_SINGLE, TINY_SINGLE_STACK, TINY_STACK, checkpoint, differences, train, train_single

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    path = tmp_path / "text.txt"
    path.write_bytes(b"Utilisateur: what?\nAssistant: the answer, 42.\n" * 12)
    return [path]


def small_model(**changes: Any) -> AtomNativeModel:
    options: dict[str, Any] = {"d_model": 5, "n_modes": 4, "max_payload_bytes": 1, "last_atom_readout": True}
    return AtomNativeModel(**{**options, **changes})


def small_stack(**changes: Any) -> StackModel:
    return StackModel(**{"depth": 2, "width": 6, "d_model": 5, "n_modes": 4, **changes})


EACH = pytest.mark.parametrize("make", [small_model, small_stack], ids=["atom", "stack"])


def warm(model: ByteModel, ticks: int = 9) -> ByteModel:
    """The model after some ticks, without graph."""
    packets = random_packets(ticks)
    with torch.no_grad():
        for current, target in pairwise(packets):
            model.transition_loss(current, target)
    return model


@pytest.mark.parametrize("tiny", [TINY, TINY_STACK], ids=["atom", "stack"])
def test_names_and_shapes_in_a_checkpoint_are_those_that_were_promised(
    tmp_path: Path, shards: list[Path], tiny: TrainConfig
) -> None:
    """A rename would make the checkpoints that people have unreadable: add a format version and a reader instead."""
    train(tmp_path / "run", shards, tiny)
    promised = json.loads((GOLDEN / f"checkpoint_{tiny.arch}.json").read_text())
    assert outline(checkpoint(tmp_path / "run", 160)) == promised


def outline(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): outline(entry) for key, entry in value.items()}
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, list):
        return [outline(entry) for entry in value[:1]]
    return type(value).__name__


@pytest.mark.parametrize("tiny", [(TINY, TINY_SINGLE), (TINY_STACK, TINY_SINGLE_STACK)], ids=["atom", "stack"])
def test_a_checkpoint_holds_tensors_and_plain_values_only(
    tmp_path: Path, shards: list[Path], tiny: tuple[TrainConfig, SingleConfig]
) -> None:
    train(tmp_path / "run", shards, tiny[0])
    train_single(tmp_path / "single", shards, tiny[1], steps=20)
    for content in (checkpoint(tmp_path / "run", 160), checkpoint(tmp_path / "single", 20, batched=False)):
        pending: list[Any] = [content]
        while pending:
            value = pending.pop()
            if isinstance(value, dict):
                pending += [*value.keys(), *value.values()]
            elif isinstance(value, (list, tuple)):
                pending += value
            else:
                assert type(value) in (torch.Tensor, str, int, float, bool, type(None), bytes), type(value)


@EACH
def test_a_model_saved_and_loaded_goes_on_bit_for_bit(tmp_path: Path, make: Callable[..., ByteModel]) -> None:
    model = warm(make(field_max_rms=0.2))
    model.save(tmp_path / "m.pt")
    twin = make()
    assert twin.load(tmp_path / "m.pt") is twin
    packets = random_packets(5, seed=8)
    for current, target in pairwise(packets):
        ours, theirs = model.transition_loss(current, target), twin.transition_loss(current, target)
        assert torch.equal(ours[0], theirs[0])
        assert torch.equal(ours[1]["surface"]["byte_logits"], theirs[1]["surface"]["byte_logits"])
    assert differences(model.sections(), twin.sections()) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"field_bptt": 9, "field_leak": 0.3, "field_leak_learnable": True},
        {"field_leak_spectrum": (0.6, 0.02)},
        {"field_leak": 0.4, "field_loss_weight": 0.2, "field_next_weight": 0.1},
        {"field_max_rms": 0.7, "last_atom_dropout": 0.25, "last_atom_scale": 2.0, "consolidation_threshold": 0.1},
    ],
    ids=["learnable", "spectrum", "probes", "limits"],
)
def test_loading_restores_what_changes_the_computation(tmp_path: Path, changes: dict[str, Any]) -> None:
    model = small_model(**changes)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    model.save(tmp_path / "m.pt")
    for twin in (
        small_model(field_bptt=3, field_leak_learnable=True).load(tmp_path / "m.pt"),
        load_model(tmp_path / "m.pt"),
    ):
        assert isinstance(twin, AtomNativeModel)
        assert twin.options() == model.options()
        assert torch.equal(twin.leak(), model.leak())
        assert differences(twin.sections(), model.sections()) == []


@pytest.mark.parametrize(
    ("make", "changes"),
    [
        *((small_model, changes) for changes in ({"d_model": 6}, {"n_modes": 3}, {"last_atom_readout": False})),
        *((small_stack, changes) for changes in ({"depth": 3}, {"width": 7}, {"d_model": 6}, {"n_modes": 3})),
    ],
)
def test_a_checkpoint_of_another_shape_is_refused_and_changes_nothing(
    tmp_path: Path, make: Callable[..., ByteModel], changes: dict[str, Any]
) -> None:
    make().save(tmp_path / "m.pt")
    other = make(**changes)
    before = {name: value.clone() for name, value in other.state_dict().items()}
    with pytest.raises(CheckpointError, match=next(iter(changes))):
        other.load(tmp_path / "m.pt")
    assert all(torch.equal(value, before[name]) for name, value in other.state_dict().items())


def test_a_checkpoint_of_the_other_architecture_is_refused_by_a_model_and_opened_by_its_name(tmp_path: Path) -> None:
    small_stack().save(tmp_path / "m.pt")
    with pytest.raises(CheckpointError, match=r"architecture 'stack', not 'atom'"):
        small_model().load(tmp_path / "m.pt")
    assert isinstance(load_model(tmp_path / "m.pt"), StackModel)


@pytest.mark.parametrize(
    ("model", "entry"),
    [
        *(
            (small_model(field_bptt=2, field_leak_learnable=True), entry)
            for entry in ("compiler", "core", "field_leak_logit", "surface")
        ),
        *((small_stack(), entry) for entry in ("stack", "state")),
    ],
    ids=lambda value: value if isinstance(value, str) else value.arch,
)
def test_a_checkpoint_with_an_entry_missing_or_mangled_is_refused_by_its_name(
    tmp_path: Path, model: ByteModel, entry: str
) -> None:
    for mangled in (None, 3, {}, {"fc1.weight": torch.zeros(1)}):
        write_checkpoint(tmp_path / "m.pt", {**model.checkpoint(), entry: mangled})
        with pytest.raises(CheckpointError, match=entry):
            load_model(tmp_path / "m.pt")


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.pt"
    model = small_model()
    model.save(path)
    before = path.read_bytes()

    def half_written(content: object, target: Any) -> None:
        target.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint_file.torch, "save", half_written)
    with pytest.raises(RunFolderError, match=r"m\.pt cannot be written \(No space left on device\): make room"):
        model.save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("mount") is None, reason="mounts a small disk")
def test_a_full_disk_is_one_clear_line_and_leaves_the_checkpoint_before(tmp_path: Path, shards: list[Path]) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=700k", "tmpfs", small], check=False).returncode:
        pytest.skip("this machine mounts nothing")
    try:
        with pytest.raises(RunFolderError, match=r"checkpoint .*_160_batched\.pt cannot be written .*: make room"):
            train(small / "run", shards, ckpt_every=80)
        assert ticks_of(checkpoint(small / "run", 80)) == 80
        assert [path.name for path in (small / "run").glob("*.pt*")] == ["atom_native_step_80_batched.pt"]
        assert list((small / "run").glob(".*.tmp")) == []
    finally:
        subprocess.run(["umount", small], check=True)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "m.pt"
    warm(small_model()).save(path)
    return path


@settings(max_examples=40, deadline=None)
@given(share=st.floats(0.0, 1.0, exclude_max=True))
@example(share=0.9999999999999998)
def test_a_file_cut_short_anywhere_is_refused(saved: Path, share: float) -> None:
    whole = saved.read_bytes()
    cut = saved.with_name("cut.pt")
    cut.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(CheckpointError, match=r"cut\.pt"):
        read_checkpoint(cut)


@settings(max_examples=80, deadline=None)
@given(share=st.floats(0.0, 1.0, exclude_max=True) | st.floats(0.9, 1.0, exclude_max=True), flip=st.integers(1, 255))
@example(share=0.99635568744727, flip=16).via("the archive's directory")
def test_a_byte_flipped_anywhere_is_refused_or_changes_nothing(saved: Path, share: float, flip: int) -> None:
    content = bytearray(saved.read_bytes())
    content[int(share * len(content))] ^= flip
    flipped = saved.with_name("flipped.pt")
    flipped.write_bytes(content)
    try:
        found = read_checkpoint(flipped)
    except CheckpointError:
        return
    assert differences(found, read_checkpoint(saved)) == []


def test_the_newest_good_checkpoint_is_found_and_damaged_ones_are_named(tmp_path: Path) -> None:
    for ticks in (5, 40, 300):
        content = small_model().checkpoint({"step": ticks})
        write_checkpoint(tmp_path / f"atom_native_step_{ticks}_batched.pt", content)
    (tmp_path / "atom_native_step_1000_batched.pt").write_bytes(b"PK half a file")
    warnings: list[str] = []
    found = newest_checkpoint(tmp_path, warnings.append)
    assert found is not None
    assert found[0].name == "atom_native_step_300_batched.pt"
    assert len(warnings) == 1
    assert "atom_native_step_1000_batched.pt" in warnings[0]


def test_a_checkpoint_of_any_name_counts_by_its_ticks(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "atom_native_step_40_batched.pt", small_model().checkpoint({"step": 40}))
    write_checkpoint(tmp_path / "mine.pt", small_model().checkpoint({"step": 50}))
    found = newest_checkpoint(tmp_path, lambda text: None)
    assert found is not None
    assert found[0].name == "mine.pt"


def test_where_every_checkpoint_is_damaged_nothing_is_begun_over_them(tmp_path: Path) -> None:
    (tmp_path / "atom_native_step_7_batched.pt").write_bytes(b"")
    with pytest.raises(CheckpointError, match="no good checkpoint"):
        newest_checkpoint(tmp_path, lambda text: None)


def test_checkpoints_travel_from_batched_to_single_to_batched_to_a_reply(tmp_path: Path, shards: list[Path]) -> None:
    first, second, third = tmp_path / "first", tmp_path / "second", tmp_path / "third"
    train(first, shards, total_ticks=100)
    said = train_single(second, shards, resume=first, steps=4, field_max_rms=TINY.field_max_rms)
    assert "restored optimizer state" in said
    single = checkpoint(second, 104, batched=False)
    assert single["training"]["step"] == 104
    assert "batched" not in single["training"]

    said = train(third, shards, resume=second, total_ticks=150)
    assert "restored optimizer state" in said
    back = checkpoint(third, 150)
    names = {name: value.shape for name, value in load_model(first).state_dict().items()}
    assert {name: value.shape for name, value in load_model(third).state_dict().items()} == names

    model = load_model(third)
    assert isinstance(generate_reply(model, "what?", max_packets=20, seed=1), str)
    loaded = AtomNativeModel(
        d_model=6, n_modes=5, max_payload_bytes=1, last_atom_readout=True, field_bptt=7, field_leak_learnable=True
    ).load(third / "atom_native_step_150_batched.pt")
    assert differences(loaded.sections()["surface"], back["surface"]) == []


def test_a_stack_travels_from_batched_to_single_to_batched_to_a_reply(tmp_path: Path, shards: list[Path]) -> None:
    first, second, third = tmp_path / "first", tmp_path / "second", tmp_path / "third"
    train(first, shards, TINY_STACK, total_ticks=100)
    said = train_single(second, shards, TINY_SINGLE_STACK, resume=first, steps=4)
    assert "restored optimizer state" in said
    said = train(third, shards, TINY_STACK, resume=second, total_ticks=150)
    assert "restored optimizer state" in said
    assert checkpoint(third, 150)["training"]["step"] == 150
    assert isinstance(generate_reply(load_model(third), "what?", max_packets=20, seed=1), str)


def test_the_single_trainer_starts_from_the_batched_weights_and_moments_exactly(
    tmp_path: Path, shards: list[Path]
) -> None:
    train(tmp_path / "batched", shards, total_ticks=60)
    train_single(
        tmp_path / "single", shards, resume=tmp_path / "batched", steps=1, learning_rate=1e-30, weight_decay=0.0
    )
    before, after = checkpoint(tmp_path / "batched", 60), checkpoint(tmp_path / "single", 61, batched=False)
    for section in ("compiler", "surface", "field_probe", "field_leak_logit"):
        assert differences(before[section], after[section], section) == []
    steps = {float(state["step"]) for state in after["training"]["optimizer"]["state"].values()}
    assert steps == {float(state["step"]) + 1 for state in before["training"]["optimizer"]["state"].values()}
