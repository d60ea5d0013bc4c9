"""What decides the shape and the computation of a `stack` model: the one place of its defaults."""

from dataclasses import dataclass

from atomnative.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class StackConfig:
    """Sizes, limiter and window; `check()` says what is wrong with them."""

    depth: int = 3
    """Layers, each with a field of its own."""
    width: int = 64
    """Width `w` of what flows from layer to layer."""
    d_model: int = 32
    """Channels `d` of a field."""
    n_modes: int = 8
    """Modes `n` of a field."""
    field_max_rms: float | None = 4.0
    """The limiter's bound on a field's rms; None: no limiter. What reads a field is normalised, so nothing else keeps
    a field from growing where a leak is learned that is smaller than its growth."""
    field_bptt: int = 32
    """Ticks of a window through which gradients flow."""

    def check(self) -> "StackConfig":
        """Itself, or ConfigError naming the setting and the rule."""
        for name in ("depth", "width", "d_model", "n_modes"):
            value = getattr(self, name)
            if value < 1:
                raise ConfigError(f"{name} must be at least 1, not {value}")
        if self.field_bptt < 1:
            raise ConfigError(
                f"the stack learns through its fields: field_bptt must be at least 1, not {self.field_bptt}"
            )
        if self.field_max_rms is not None and not self.field_max_rms > 0:
            raise ConfigError(f"field_max_rms must be positive, not {self.field_max_rms}")
        return self
