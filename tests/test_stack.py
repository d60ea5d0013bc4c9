"""What the stack alone promises: its input, its state of a fixed size, and a byte that costs the same at any tick."""

import copy
import gc
import re
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from atomnative import Atomizer, ByteCorpus, StackModel, load_model
from atomnative.errors import ConfigError
from atomnative.evaluation.bits_per_byte import bits_per_byte
from atomnative.inference.chat import generate_bytes, sample_text
from atomnative.training.config import SingleConfig, TrainConfig
from tests.forms import as_window, random_packets
from tests.runs import TINY_STACK, differences, train

DEPTH, WIDTH, D, N = 3, 10, 6, 7


def small_stack(**changes: Any) -> StackModel:
    torch.manual_seed(4)
    return StackModel(**{"depth": DEPTH, "width": WIDTH, "d_model": D, "n_modes": N, **changes})


# -- the state --------------------------------------------------------------------------------------------------------


def test_the_state_of_a_stream_is_its_fields_and_its_last_byte() -> None:
    model = small_stack()
    state = model.sections()["state"]
    assert {name: list(value.shape) for name, value in state.items()} == {"alpha": [DEPTH, N, D], "last_byte": []}
    streams = model.streams(4).state_dict()
    shapes = {name: list(value.shape) for name, value in streams.items() if name != "ticks"}
    assert shapes == {"alpha": [4, DEPTH, N, D], "last_byte": [4]}


class Operations(TorchDispatchMode):
    """Counts what torch is asked to do: operations by name and by the size of what they give."""

    def __init__(self) -> None:
        super().__init__()
        self.counted: Counter[tuple[str, int]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, (tuple, list)) else [out]:
            self.counted[str(func), value.numel() if isinstance(value, torch.Tensor) else 0] += 1
        return out


def at_position(model: StackModel, position: int) -> StackModel:
    """As if the model had read that many bytes."""
    model.atomizer.load_state_dict({**model.atomizer.state_dict(), "position": position})
    return model


def test_a_byte_is_the_same_work_at_byte_10_and_at_byte_10_million() -> None:
    model = small_stack().eval()
    writing = generate_bytes(model, b"A text", seed=1)
    work: list[Counter[tuple[str, int]]] = []
    for position, warm in ((10, 4), (10_000_000, 500)):
        for _ in islice(writing, warm):
            pass
        at_position(model, position)
        with Operations() as operations:
            next(writing)
        work.append(operations.counted)
    assert sum(work[0].values()) > 50 * DEPTH
    assert work[0] == work[1]


def test_writing_keeps_nothing_of_what_it_has_written() -> None:
    model = small_stack().eval()
    writing = generate_bytes(model, b"A text", seed=1)

    def kept() -> tuple[int, int]:
        """Tensors alive, and their numbers."""
        gc.collect()
        alive = [thing for thing in gc.get_objects() if type(thing) in (torch.Tensor, torch.nn.Parameter)]
        return len(alive), sum(tensor.numel() for tensor in alive)

    for _ in islice(writing, 10):
        pass
    early = kept()
    for _ in islice(writing, 1500):
        pass
    assert kept() == early


@pytest.mark.parametrize(("settings", "bound"), [({}, 4.0), ({"field_max_rms": 0.5}, 0.5)], ids=["default", "given"])
def test_the_limiter_bounds_every_field_of_a_stack_however_it_is_weighted(
    settings: dict[str, float], bound: float
) -> None:
    model = small_stack(**settings).eval()
    with torch.no_grad():
        for layer in model.stack_layers():
            layer.leak_logit.fill_(-20.0)  # nothing is ever forgotten: without a limiter this grows for ever
            layer.dynamics.phase_sync.zero_()
    for byte in islice(generate_bytes(model, b"A text", seed=1), 300):
        assert 0 <= byte < 256
    rms = model.state.alpha.square().mean((-2, -1)).sqrt()  # [D]
    assert torch.allclose(rms, torch.full_like(rms, bound), rtol=1e-3)


# -- what it is told ------------------------------------------------------------------------------------------------


def test_an_episode_begins_as_if_the_byte_before_were_the_first_byte_itself() -> None:
    model = small_stack().eval()
    first, second = Atomizer(max_span_bytes=1).encode_bytes(b"ab")
    with torch.no_grad():
        fresh = model.next_byte_logits(first)
        model.next_byte_logits(second)
        model.reset_state()
        assert torch.equal(model.next_byte_logits(first), fresh)
        model.reset_state()
        model.last_byte = first.payload[0]
        assert torch.equal(model.next_byte_logits(first), fresh)
        model.reset_state()
        model.last_byte = second.payload[0]
        assert not torch.allclose(model.next_byte_logits(first), fresh)


def test_every_parameter_has_an_effect_on_the_loss() -> None:
    model = small_stack()
    packets = random_packets(12)
    model.streams(1).run_window(*as_window(packets, 0, 12))["loss"].sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name


def test_a_flush_of_atoms_changes_nothing_since_it_has_none() -> None:
    model = small_stack()
    packets = random_packets(3)
    with torch.no_grad():
        model.transition_loss(packets[0], packets[1])
        twin = copy.deepcopy(model)
        model.flush_atoms()
        ours, theirs = (m.transition_loss(packets[1], packets[2])[0] for m in (model, twin))
    assert torch.equal(ours, theirs)


def test_the_leaks_begin_log_spaced_from_0_6_to_0_01() -> None:
    for layer in small_stack().stack_layers():
        leak = torch.sigmoid(layer.leak_logit).detach()
        assert float(leak[0]) == pytest.approx(0.6, rel=1e-5)
        assert float(leak[-1]) == pytest.approx(0.01, rel=1e-5)
        assert torch.allclose(leak[1:] / leak[:-1], (leak[1] / leak[0]).expand(N - 1), rtol=1e-4)


def test_a_copy_is_independent_also_in_the_middle_of_a_window() -> None:
    model = small_stack()
    packets = random_packets(3)
    model.transition_loss(packets[0], packets[1])
    twin = copy.deepcopy(model)
    assert differences(twin.sections(), model.sections()) == []
    twin.transition_loss(packets[1], packets[2])[0].backward()
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not torch.equal(model.state.alpha, twin.state.alpha)


def test_a_sample_leaves_a_stack_in_training_as_it_was() -> None:
    model = small_stack().train()
    packets = random_packets(3)
    model.transition_loss(packets[0], packets[1])
    before = copy.deepcopy(model.sections())
    assert sample_text(model, b"some text", 20, seed=3)
    assert model.training
    assert differences(model.sections(), before) == []


def test_the_trained_scalars_are_brought_back_into_their_bounds_in_every_layer() -> None:
    model = small_stack()
    with torch.no_grad():
        for layer in model.stack_layers():
            layer.dynamics.energy_decay.fill_(2.0)
            layer.dynamics.phase_sync.fill_(-3.0)
    model.stabilize_dynamics_parameters()
    for layer in model.stack_layers():
        assert layer.dynamics.energy_decay.item() == pytest.approx(0.95)
        assert layer.dynamics.phase_sync.item() == -1.0


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        *(({name: 0}, f"{name} must be at least 1, not 0") for name in ("depth", "width", "d_model", "n_modes")),
        ({"field_bptt": 0}, "learns through its fields: field_bptt must be at least 1, not 0"),
        ({"field_max_rms": 0.0}, "field_max_rms must be positive, not 0.0"),
        ({"atomizer": Atomizer(max_span_bytes=4)}, "byte by byte: use Atomizer(max_span_bytes=1), not 4"),
    ],
)
def test_a_setting_out_of_its_domain_is_a_value_error_that_names_it(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        small_stack(**changes)


def test_a_packet_of_several_bytes_is_refused() -> None:
    packet = Atomizer().encode("several")[0]
    with pytest.raises(ConfigError, match="byte by byte: a packet of 7 bytes does not fit"):
        small_stack().next_byte_logits(packet)


def test_features_of_another_width_are_refused() -> None:
    current, features, target = as_window(random_packets(2), 0, 2)
    with pytest.raises(ConfigError, match="features have 19 columns: give all 320 or the 20 live"):
        small_stack().streams(1).run_window(current, features[..., :19], target)


# -- which architecture a run has -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "arch", "field"),
    [
        (TrainConfig(), "stack", (32, 8, 4.0)),
        (TrainConfig(d_model=9, field_max_rms=0.5), "stack", (9, 8, 0.5)),
        (TrainConfig(arch="atom"), "atom", (48, 16, None)),
        (TrainConfig(field_leak=0.1, field_max_rms=0.5), "atom", (48, 16, 0.5)),
        (TrainConfig(field_leak_learnable=False, n_modes=3), "atom", (48, 3, None)),
        (SingleConfig(max_span_bytes=8), "atom", (48, 16, None)),
        (SingleConfig(width=32), "stack", (32, 8, 4.0)),
    ],
)
def test_a_run_is_of_the_stack_unless_it_is_told_something_that_only_an_atom_has(
    config: TrainConfig | SingleConfig, arch: str, field: tuple[int, int, float | None]
) -> None:
    assert config.architecture() == arch
    options = config.model_options()
    assert (options["d_model"], options["n_modes"], options["field_max_rms"]) == field


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            TrainConfig(arch="stack", field_leak=0.1),
            "--field-leak is a setting of the atom, and this run",
        ),
        (TrainConfig(arch="atom", depth=2), "--depth is a setting of the stack, and this run"),
        (TrainConfig(arch="atom", depth=3), "--depth is a setting of the stack, and this run"),
        (TrainConfig(arch="atom", width=64), "--width is a setting of the stack, and this run"),
        (TrainConfig(depth=2, last_atom_dropout=0.5), "leave it out, or ask for --arch atom"),
        (SingleConfig(arch="stack", max_span_bytes=8), "--max-span-bytes is a setting of the atom"),
    ],
)
def test_settings_of_two_architectures_are_refused_by_their_flag(
    config: TrainConfig | SingleConfig, words: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        config.model_options()


def test_a_stack_learns_and_is_measured_by_what_measures_any_model(tmp_path: Path) -> None:
    shard = tmp_path / "text.txt"
    shard.write_bytes(b"the quick brown fox jumps over the lazy dog\n" * 40)
    train(tmp_path / "run", [shard], TINY_STACK, total_ticks=1400, ckpt_every=0, learning_rate=2e-2)
    model = load_model(tmp_path / "run")
    assert bits_per_byte(model, ByteCorpus([shard]), 2) < 1.0
