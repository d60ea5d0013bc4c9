"""The options that only the single-stream form has (design 2.8): which of them a model has on."""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from atomnative.model.atom.single import AtomNativeModel


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
        (model.enable_merge, "enable_merge", "enable_merge=False", False),
        (surface.payload_enabled, "surface.payload_enabled (--payload-copy)", "payload_copy=False", False),
        (model.efference_every > 0, "efference_every", "efference_every=0", False),
        (model.field_contrast_weight > 0, "field_contrast_weight", "field_contrast_weight=0", False),
        (model.slow_every > 1, "slow_every", "slow_every=1", False),
        (
            surface.last_atom_scale_adaptive,
            "surface.last_atom_scale_adaptive",
            "last_atom_scale_adaptive=False",
            False,
        ),
        (model.field_leak_spectrum is not None, "field_leak_spectrum", "a scalar or learnable leak", True),
        (model.max_payload_bytes > 1, "spans (max_payload_bytes or --max-span-bytes above 1)", "1", False),
        (not model.field_obligatory_hard, "field_obligatory_hard=False", "field_obligatory_hard=True", False),
        (model.field_next_weight > 0, "field_next_weight", "field_next_weight=0", True),
    ]
    return [SingleStreamOption(name, f"use {remedy}", computed) for on, name, remedy, computed in every if on]
