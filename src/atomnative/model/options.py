"""The options that only the single-stream form has (design 2.8): which of them a model has on."""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from atomnative.model.single import AtomNativeModel


class SingleStreamOption(NamedTuple):
    """An option found on."""

    name: str
    remedy: str
    computed: bool
    """Whether the single-stream form computes it."""


def single_stream_options(model: "AtomNativeModel") -> list[SingleStreamOption]:
    """Those that are on, in the design's order."""
    surface = model.surface
    every = [
        (model.enable_merge, "enable_merge", "set enable_merge=False", False),
        (surface.payload_enabled, "surface.payload_enabled", "set surface.payload_enabled=False", False),
        (model.efference_every > 0, "efference_every", "set efference_every=0", False),
        (model.field_contrast_weight > 0, "field_contrast_weight", "set field_contrast_weight=0", False),
        (model.slow_every > 1, "slow_every", "set slow_every=1", False),
        (
            surface.last_atom_scale_adaptive,
            "surface.last_atom_scale_adaptive",
            "set surface.last_atom_scale_adaptive=False",
            False,
        ),
        (
            model.field_leak_spectrum is not None,
            "field_leak_spectrum",
            "use a scalar or learnable leak, set_field_leak_spectrum(None)",
            True,
        ),
        (
            model.max_payload_bytes > 1,
            "max_payload_bytes > 1 (spans)",
            "build the model with max_payload_bytes=1",
            False,
        ),
        (
            not model.field_obligatory_hard,
            "field_obligatory_hard=False (the soft readout)",
            "build the model with field_obligatory_hard=True",
            False,
        ),
        (model.field_next_weight > 0, "field_next_weight", "set field_next_weight=0", True),
    ]
    return [SingleStreamOption(name, remedy, computed) for on, name, remedy, computed in every if on]
