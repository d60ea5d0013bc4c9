"""What a run is told: the flags of the two trainers, their defaults and their domains."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import tyro

from atomnative.errors import ConfigError, check_seed
from atomnative.model.stack.config import StackConfig
from atomnative.training.schedule import Schedule

Architecture = Literal["atom", "stack"]
SIZES = {
    "atom": {"d_model": 48, "n_modes": 16, "field_max_rms": None},
    "stack": {name: getattr(StackConfig, name) for name in ("depth", "width", "d_model", "n_modes", "field_max_rms")},
}
"""What a model is where a setting is not given."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """What both trainers are told."""

    data: tuple[str, ...] = ()
    """Files to train on, in this order; the word stdlib stands for the source text of Python's standard library."""
    data_glob: str | None = None
    """Pattern of files to train on, sorted, after those of --data; quote it."""
    output_dir: Path = Path("runs/default")
    """Run folder; with a checkpoint in it, the run goes on from the newest."""
    resume: Path | None = None
    """Go on from this checkpoint, or from the newest of this run folder, whatever the output folder holds."""

    arch: Architecture | None = None
    """The model: a stack of layers with a field each, or an atom, one field and its readouts; by default a stack,
    or an atom where a flag is given that only it has."""
    depth: int | None = None
    """Layers; by default 3 (stack)."""
    width: int | None = None
    """Width of what flows from layer to layer; by default 64 (stack)."""
    d_model: int | None = None
    """Channels of a field; by default 32 (stack), 48 (atom)."""
    n_modes: int | None = None
    """Modes of a field; by default 8 (stack), 16 (atom)."""
    field_bptt: int = 32
    """Ticks of a window, through which gradients flow; 0: each tick trains only itself (atom)."""
    field_max_rms: float | None = None
    """Limit a field's root mean square; by default to 4 (stack), not at all (atom); inf: not at all."""
    n_atoms_max: int = 128
    """Living atoms at most (atom)."""
    atom_flush_every: int = 128
    """Ticks between two flushes of the living atoms (atom)."""
    field_leak: float = 0.4
    """Share of the field forgotten at each tick; a learnable leak starts there (atom)."""
    field_leak_learnable: bool = True
    """Train one leak for each mode (atom)."""
    field_loss_weight: float = 0.0
    """Weight of the probe that reads the byte's features back from the field (atom)."""
    last_atom_dropout: float = 0.0
    """Chance that a stream's last-byte term is left out at a tick, in training (atom)."""
    episode_length: int = 0
    """Ticks after which all streams start afresh; 0: never."""

    learning_rate: float = 4e-3
    """Peak learning rate."""
    surface_learning_rate: float | None = None
    """Peak learning rate of the readout; by default the same."""
    weight_decay: float = 0.01
    """AdamW's weight decay."""
    warmup_ticks: int = 3200
    """Ticks over which the learning rate rises to its peak."""
    lr_schedule: Schedule = "constant"
    """The learning rate after the warm-up; cosine falls to 0 at the run's last tick."""
    seed: int = 0
    """Seed of weights and dropout."""

    threads: int | None = None
    """CPU threads, by default torch's choice; beside other busy programs, 1 is faster."""
    device: str = "cpu"
    """Where to train: cpu, cuda, cuda:1, ..."""
    log_every: int = 3200
    """Ticks between two lines of progress."""
    allow_parallel_train: bool = False
    """Train although another trainer holds the output folder."""

    def architecture(self) -> Architecture:
        """The one asked for, or else the one whose own settings are given, or else the stack.

        Raises:
            ConfigError: settings of another one.
        """
        given = [field.name for field in fields(self) if getattr(self, field.name) != field.default]
        owned = [name for name in given if name in OWNER]
        arch = self.arch or (OWNER[owned[0]] if owned else "stack")
        for name in owned:
            if OWNER[name] != arch:
                raise ConfigError(
                    f"{_flag(name)} is a setting of the {OWNER[name]}, and this run is of the {arch}: "
                    f"leave it out, or ask for --arch {OWNER[name]} in an output folder without a run"
                )
        return arch

    def model_options(self) -> dict[str, Any]:
        """The model's settings among these; ConfigError for those of another architecture."""
        arch = self.architecture()
        given = {name: getattr(self, name) for name in SIZES[arch]}
        sizes = {name: SIZES[arch][name] if value is None else value for name, value in given.items()}
        own = self._atom_options() if arch == "atom" else {}
        return {**sizes, "field_bptt": self.field_bptt, **own}

    def _atom_options(self) -> dict[str, Any]:
        return {
            "n_atoms_max": self.n_atoms_max,
            "field_leak": self.field_leak,
            "field_leak_learnable": self.field_leak_learnable,
            "field_loss_weight": self.field_loss_weight,
            "last_atom_dropout": self.last_atom_dropout,
        }

    def check(self) -> None:
        """ConfigError naming the flag and the rule, for what the model does not check itself."""
        at_least = {"episode_length": 0, "warmup_ticks": 0, "log_every": 1, "atom_flush_every": 1}
        _check_bounds(self, at_least)
        if self.threads is not None and self.threads < 1:
            raise ConfigError(f"--threads must be at least 1, not {self.threads}")
        for name in ("learning_rate", "surface_learning_rate"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(f"{_flag(name)} must be a positive number, not {value}")
        check_seed(self.seed)
        if self.arch is not None and self.arch not in get_args(Architecture):
            raise ConfigError(f"--arch must be one of {', '.join(get_args(Architecture))}, not {self.arch!r}")
        if self.lr_schedule not in get_args(Schedule):
            raise ConfigError(f"--lr-schedule must be one of {', '.join(get_args(Schedule))}, not {self.lr_schedule!r}")
        if not 0 <= self.weight_decay < float("inf"):
            raise ConfigError(f"--weight-decay must be a number of at least 0, not {self.weight_decay}")


@dataclass(frozen=True, kw_only=True)
class TrainConfig(RunConfig):
    """Train a model on raw bytes, in many parallel streams."""

    batch_size: Annotated[int, tyro.conf.arg(aliases=["-B"])] = 64
    """Parallel streams."""
    total_ticks: int = 125_000
    """Ticks of the whole run; each tick is one byte of every stream."""
    run_ticks: int | None = None
    """Stop at the first window end at or after that many ticks of this start, with a checkpoint."""
    ckpt_every: int = 10_000
    """Ticks between two checkpoints; 0: only at the end."""
    samples: bool = True
    """Show a sample of what the model writes at each checkpoint."""

    def _atom_options(self) -> dict[str, Any]:
        return {**super()._atom_options(), "max_payload_bytes": 1, "last_atom_readout": True}

    def check(self) -> None:
        super().check()
        _check_bounds(self, {"batch_size": 1, "total_ticks": 1, "ckpt_every": 0})
        if self.run_ticks is not None and self.run_ticks < 1:
            raise ConfigError(f"--run-ticks must be at least 1, not {self.run_ticks}")


@dataclass(frozen=True, kw_only=True)
class SingleConfig(RunConfig):
    """Train with the single-stream reference form, one packet after another."""

    field_leak_learnable: bool = False
    """Train one leak for each mode (atom)."""
    stream: bool = True
    """Read the shards in chunks; otherwise each shard as a whole."""
    loop_shards: bool = True
    """Begin again after the last shard; otherwise stop there."""
    chunk_bytes: int = 1 << 20
    """Bytes read at a time."""
    checkpoint_name: str | None = None
    """File name of the checkpoint; by default atom_native_step_TICKS.pt."""
    steps: int = 1000
    """Ticks of this start, beyond those of the checkpoint it goes on from."""
    max_span_bytes: int = 1
    """Bytes of a packet at most; 1 is byte tick (atom)."""
    field_obligatory_hard: bool = True
    """Only the field and the last atom reach the logits (atom)."""
    enable_merge: bool = False
    """Merge coherent living atoms (atom)."""
    payload_copy: bool = False
    """Logits also from the living atoms' payloads (atom)."""
    last_atom_readout: bool = True
    """Logits also from the last two bytes, in byte tick, where alone it can be (atom)."""
    efference_every: int = 0
    """Feed the model its own byte on every N-th tick; 0: never (atom)."""

    def _atom_options(self) -> dict[str, Any]:
        return {
            **super()._atom_options(),
            "max_payload_bytes": self.max_span_bytes,
            "last_atom_readout": self.last_atom_readout and self.max_span_bytes == 1,
            "field_obligatory_hard": self.field_obligatory_hard,
            "enable_merge": self.enable_merge,
            "payload_copy": self.payload_copy,
            "efference_every": self.efference_every,
        }

    def check(self) -> None:
        super().check()
        _check_bounds(self, {"steps": 1, "max_span_bytes": 1})
        name = self.checkpoint_name
        if name is not None and (Path(name).name != name or not name.endswith(".pt")):
            raise ConfigError(f"--checkpoint-name must be a file name that ends in .pt, not {name!r}")


OF_THIS_START = frozenset(
    {"output_dir", "resume", "run_ticks", "steps", "device", "allow_parallel_train", "checkpoint_name"}
)
"""Settings that a resumed run does not take over from its checkpoint."""


OWNER: dict[str, Architecture] = {
    **dict.fromkeys(("depth", "width"), "stack"),
    **dict.fromkeys(("n_atoms_max", "atom_flush_every", "field_leak", "field_leak_learnable"), "atom"),
    **dict.fromkeys(("field_loss_weight", "last_atom_dropout", "last_atom_readout", "max_span_bytes"), "atom"),
    **dict.fromkeys(("field_obligatory_hard", "enable_merge", "payload_copy", "efference_every"), "atom"),
}
"""The architecture of each setting that only one has."""


def settings(config: RunConfig) -> dict[str, Any]:
    """The settings that a checkpoint records, as plain values: those that the run's architecture has."""
    arch = config.architecture()
    chosen = {"arch": arch, **config.model_options()}
    names = [field.name for field in fields(config) if field.name not in OF_THIS_START]
    recorded = {name: chosen.get(name, getattr(config, name)) for name in names if OWNER.get(name, arch) == arch}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in recorded.items()}


def _check_bounds(config: RunConfig, at_least: dict[str, int]) -> None:
    for name, low in at_least.items():
        value = getattr(config, name)
        if value < low:
            raise ConfigError(f"{_flag(name)} must be at least {low}, not {value}")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
