"""What decides the shape and the computation of an `atom` model: the one place of its defaults."""

from dataclasses import dataclass

from atomnative.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Sizes, leak, limits and loss weights; `check()` says what is wrong with them.

    The options marked (single) are ones that only the single-stream form has (design 2.8).
    """

    d_model: int = 8
    """Channels `d` of the field."""
    n_modes: int = 8
    """Modes `n` of the ring."""
    n_atoms_max: int = 128
    """Living atoms at most; the oldest is dropped."""
    max_payload_bytes: int = 32
    """Bytes of a packet at most, `L`; 1 is byte tick, above 1 (single)."""
    field_max_rms: float | None = None
    """The limiter's bound on the field's rms; None: no limiter."""
    field_leak: float = 0.0
    """`lambda`, the share of the field forgotten at each tick, in [0, 1); a learnable leak starts there."""
    field_leak_learnable: bool = False
    """One trained leak per mode."""
    field_leak_spectrum: tuple[float, float] | None = None
    """Fixed leaks, log-spaced over the modes from the first to the second value (single)."""
    field_bptt: int = 0
    """Ticks of a window through which gradients flow; 0: a tick trains only itself."""
    field_obligatory_hard: bool = True
    """Only the field and the last atom reach the logits; False: the soft readout (single)."""
    last_atom_readout: bool = False
    """Logits also from the last byte and the one before it (byte tick only)."""
    last_atom_dropout: float = 0.0
    """Chance that a stream's last-atom term is dropped at a tick, in training."""
    last_atom_scale: float = 1.0
    """`s_la`, the weight of the last-atom term."""
    last_atom_scale_adaptive: bool = False
    """The weight of the last-atom term follows the field term's size (single)."""
    field_loss_weight: float = 0.0
    """Weight of the probe that reads the packet's features back from the field."""
    field_next_weight: float = 0.0
    """Weight of the probe that predicts the next packet's features (single)."""
    field_contrast_weight: float = 0.0
    """Weight of the contrast loss (single)."""
    consolidation_threshold: float = 0.7
    """Energy times stability above which a channel is consolidated."""
    enable_merge: bool = False
    """Merge coherent living atoms (single)."""
    payload_copy: bool = False
    """Logits also from the living atoms' payloads (single)."""
    efference_every: int = 0
    """Feed the model its own byte on every N-th tick; 0: never (single)."""
    slow_every: int = 1
    """Consolidate on every N-th tick only (above 1: single)."""

    def check(self) -> "ModelConfig":
        """Itself, or ConfigError naming the setting and the rule."""
        for name in ("d_model", "n_modes", "n_atoms_max", "max_payload_bytes", "slow_every"):
            value = getattr(self, name)
            if value < 1:
                raise ConfigError(f"{name} must be at least 1, not {value}")
        for name in ("field_bptt", "efference_every"):
            value = getattr(self, name)
            if value < 0:
                raise ConfigError(f"{name} must not be negative, not {value}")
        for name in ("field_loss_weight", "field_next_weight", "field_contrast_weight"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise ConfigError(f"{name} must be a number of at least 0, not {value}")
        if not 0 <= self.field_leak < 1:
            raise ConfigError(f"field_leak must be in [0, 1), not {self.field_leak}")
        if not 0 <= self.last_atom_dropout <= 1:
            raise ConfigError(f"last_atom_dropout must be in [0, 1], not {self.last_atom_dropout}")
        if self.field_max_rms is not None and not self.field_max_rms > 0:
            raise ConfigError(f"field_max_rms must be positive, not {self.field_max_rms}")
        check_leak(self.field_leak_learnable, self.field_leak_spectrum, self.field_bptt)
        if self.last_atom_readout and self.max_payload_bytes > 1:
            raise ConfigError(
                f"last_atom_readout works byte by byte: set max_payload_bytes to 1, not {self.max_payload_bytes}"
            )
        return self


def check_leak(learnable: bool, spectrum: tuple[float, float] | None, field_bptt: int) -> None:
    """ConfigError for a leak of two kinds at once, or one that could never be trained."""
    if spectrum is not None:
        low, high = spectrum
        if not (0 < low < 1 and 0 < high < 1):
            raise ConfigError(f"field_leak_spectrum must lie in (0, 1), not ({low}, {high})")
        if learnable:
            raise ConfigError("field_leak_learnable and field_leak_spectrum contradict each other: choose one")
    if learnable and field_bptt == 0:
        raise ConfigError("field_leak_learnable needs gradients through the field: set field_bptt to at least 1")
