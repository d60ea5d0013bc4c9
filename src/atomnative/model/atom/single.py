"""The single-stream form: the readable reference, one tick after another, RK4 as written (design section 2)."""

import copy
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from atomnative.checkpoint.tensors import check_like, check_tensor
from atomnative.data.atomizer import Atomizer, AtomPacket
from atomnative.errors import CheckpointError, ConfigError, NotAvailableYet
from atomnative.model.atom.atoms import HISTORY_KEPT, Consolidation, LivingAtom
from atomnative.model.atom.batched import BatchedByteTick
from atomnative.model.atom.compiler import Compiler, Properties
from atomnative.model.atom.config import ModelConfig, check_leak
from atomnative.model.atom.options import single_stream_options
from atomnative.model.atom.probes import FieldProbe, field_summary, mean_and_std
from atomnative.model.atom.surface import Surface
from atomnative.model.field import FieldDynamics, FieldEncoder, FieldState, channel_phases
from atomnative.model.protocol import ByteModel

# Legend: n modes, d channels, L bytes of a payload at most.

SMALLEST_LEARNABLE_LEAK = 1e-3
"""A sigmoid cannot start at 0 or 1: a learnable leak starts at least this far from either."""


class FieldCore(nn.Module):
    """Encoder, dynamics, field, living atoms and slow memory of the single stream.

    `atoms` may be replaced by `type(atoms)()` and `energy_history` by `[]` to flush.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.encoder = FieldEncoder()
        self.dynamics = FieldDynamics(config.field_max_rms)
        self.state = FieldState(config.n_modes, config.d_model)
        self.consolidation = Consolidation(config.d_model, config.consolidation_threshold)
        self.atoms: list[LivingAtom] = []
        self.energy_history: list[torch.Tensor] = []

    def remember(self, atom: Properties, payload: bytes, n_atoms_max: int) -> None:
        """The atom joins the living atoms, and the slow memory takes note (design 2.4)."""
        level = min(len(self.atoms) // 64, 4)
        self.atoms.append(LivingAtom(payload, atom.energy.detach(), level))
        del self.atoms[:-n_atoms_max]
        mean_energy = torch.stack([living.energy for living in self.atoms]).mean(0)  # [d]
        self.consolidation(mean_energy, self.energy_history, self.state.alpha)
        self.energy_history.append(mean_energy)
        del self.energy_history[:-HISTORY_KEPT]


class AtomNativeModel(ByteModel):
    """The `atom` architecture: its weights, and its single-stream form.

    Every option and its default is described in `ModelConfig`; each is also an attribute, here, on `surface` or on
    `core.dynamics`. Without an `atomizer` it makes `Atomizer(max_span_bytes=max_payload_bytes)`.

    Raises:
        ConfigError: a setting out of its domain, or settings that contradict each other.
    """

    arch = "atom"
    shape = ("d_model", "n_modes", "max_payload_bytes", "last_atom_readout")

    def __init__(
        self,
        d_model: int = ModelConfig.d_model,
        n_modes: int = ModelConfig.n_modes,
        n_atoms_max: int = ModelConfig.n_atoms_max,
        max_payload_bytes: int = ModelConfig.max_payload_bytes,
        atomizer: Atomizer | None = None,
        field_max_rms: float | None = ModelConfig.field_max_rms,
        enable_merge: bool = ModelConfig.enable_merge,
        slow_every: int = ModelConfig.slow_every,
        field_obligatory_hard: bool = ModelConfig.field_obligatory_hard,
        last_atom_readout: bool = ModelConfig.last_atom_readout,
        field_loss_weight: float = ModelConfig.field_loss_weight,
        field_contrast_weight: float = ModelConfig.field_contrast_weight,
        field_leak: float = ModelConfig.field_leak,
        field_leak_learnable: bool = ModelConfig.field_leak_learnable,
        field_bptt: int = ModelConfig.field_bptt,
        *,
        field_leak_spectrum: tuple[float, float] | None = ModelConfig.field_leak_spectrum,
        field_next_weight: float = ModelConfig.field_next_weight,
        last_atom_dropout: float = ModelConfig.last_atom_dropout,
        last_atom_scale: float = ModelConfig.last_atom_scale,
        last_atom_scale_adaptive: bool = ModelConfig.last_atom_scale_adaptive,
        consolidation_threshold: float = ModelConfig.consolidation_threshold,
        payload_copy: bool = ModelConfig.payload_copy,
        efference_every: int = ModelConfig.efference_every,
    ) -> None:
        super().__init__()
        given = {name: value for name, value in locals().items() if name in ModelConfig.__dataclass_fields__}
        config = ModelConfig(**given).check()
        self.atomizer = Atomizer(max_span_bytes=max_payload_bytes) if atomizer is None else atomizer
        if self.atomizer.max_span_bytes > max_payload_bytes:
            raise ConfigError(
                f"the atomizer's packets of up to {self.atomizer.max_span_bytes} bytes do not fit "
                f"max_payload_bytes={max_payload_bytes}: use Atomizer(max_span_bytes={max_payload_bytes})"
            )
        self.d_model = config.d_model
        self.n_modes = config.n_modes
        self.n_atoms_max = config.n_atoms_max
        self.max_payload_bytes = config.max_payload_bytes
        self.enable_merge = config.enable_merge
        self.slow_every = config.slow_every
        self.field_obligatory_hard = config.field_obligatory_hard
        self.field_loss_weight = config.field_loss_weight
        self.field_next_weight = config.field_next_weight
        self.field_contrast_weight = config.field_contrast_weight
        self.efference_every = config.efference_every
        self.field_bptt = config.field_bptt
        self.field_leak = config.field_leak
        self.field_leak_spectrum = config.field_leak_spectrum
        self.compiler = Compiler(d_model)
        self.core = FieldCore(config)
        self.surface = Surface(
            d_model,
            n_modes,
            max_payload_bytes,
            last_atom_readout=last_atom_readout,
            last_atom_dropout=last_atom_dropout,
            last_atom_scale=last_atom_scale,
            last_atom_scale_adaptive=last_atom_scale_adaptive,
            payload_enabled=payload_copy,
        )
        self.field_probe = FieldProbe(d_model) if field_loss_weight > 0 else None
        self.field_next_probe = FieldProbe(d_model) if field_next_weight > 0 else None
        self.field_leak_logit: nn.Parameter | None = None
        if field_leak_learnable:
            self._begin_learnable_leak()

    # -- one tick ---------------------------------------------------------------------------------------------------

    def transition_loss(self, current: AtomPacket, target: AtomPacket) -> tuple[torch.Tensor, dict[str, Any]]:
        """One tick on `current`, and the loss of predicting `target` (design 2.6).

        Returns: the loss, a scalar in nats, and an info of tensors: `surface.byte_logits` [L, 256], `byte_loss` (the
            cross-entropy alone), and `field_loss` and `field_next_loss` where their weights are on.
        """
        atom, logits = self._tick(current)
        byte = torch.tensor([target.payload[0]], device=logits.device)  # [1]
        loss = byte_loss = F.cross_entropy(logits, byte)
        info: dict[str, Any] = {"surface": {"byte_logits": logits}, "byte_loss": byte_loss}
        if self.field_loss_weight > 0 or self.field_next_weight > 0:
            mean, std = mean_and_std(self.core.state.alpha, dim=-2)  # [d] each
            z = field_summary(mean, std, self.core.consolidation.persistence, atom.r)  # [4d]
            for name, weight, probe, packet in (
                ("field_loss", self.field_loss_weight, self.field_probe, current),
                ("field_next_loss", self.field_next_weight, self.field_next_probe, target),
            ):
                if weight > 0:
                    info[name] = built_probe(probe, name).loss(z, self._features(packet))
                    loss = loss + weight * info[name]
        if self.field_bptt == 0:
            self.detach_field_graph()
        return loss, info

    def next_byte_logits(self, packet: AtomPacket) -> torch.Tensor:
        """One tick without a target: logits of the next packet's bytes, [L, 256]."""
        return self._tick(packet)[1]

    def _tick(self, packet: AtomPacket) -> tuple[Properties, torch.Tensor]:
        self.check_available()
        core = self.core
        atom = self.compiler(self._features(packet))  # [d] each
        alpha = core.encoder(core.state.alpha, self.leak(), atom.bump(self.n_modes), atom.r)  # [n, d]
        if self.field_bptt == 0:
            alpha = alpha.detach()
        core.state.alpha = core.dynamics(alpha, atom.r, channel_phases(atom.r))  # [n, d]
        core.remember(atom, packet.payload, self.n_atoms_max)

        last = packet.payload[-1]
        before = core.atoms[-2].payload[-1] if len(core.atoms) > 1 else last
        pair = torch.tensor([last, before], device=alpha.device)  # [2]
        a = self.surface.J @ core.state.alpha.flatten()  # [2d]
        logits = self.surface(a, pair[0], pair[1], atom.phi, self.surface.draw_dropped())  # [L 256]
        return atom, logits.reshape(self.max_payload_bytes, 256)

    def check_available(self) -> None:
        """NotAvailableYet for an option that no form computes yet, ConfigError for a leak that could not be trained."""
        for option in single_stream_options(self):
            if not option.computed:
                raise NotAvailableYet(f"{option.name} is not available yet: {option.remedy}")
        check_leak(self.field_leak_learnable, self.field_leak_spectrum, self.field_bptt)

    def _features(self, packet: AtomPacket) -> torch.Tensor:
        return packet.features.to(self.core.state.alpha)  # [320]

    def leak(self) -> torch.Tensor:
        """`lambda`: [n], or [] where it is one number for all modes."""
        if self.field_leak_logit is not None:
            return torch.sigmoid(self.field_leak_logit)
        like = self.core.state.alpha
        if self.field_leak_spectrum is not None:
            low, high = torch.tensor(self.field_leak_spectrum, dtype=torch.float64).log10().tolist()
            return torch.logspace(low, high, self.n_modes, dtype=like.dtype, device=like.device)
        return torch.tensor(self.field_leak, dtype=like.dtype, device=like.device)

    # -- settings ---------------------------------------------------------------------------------------------------

    @property
    def field_leak_learnable(self) -> bool:
        return self.field_leak_logit is not None

    def set_field_leak_learnable(self, learnable: bool) -> None:
        """Train one leak per mode, from `field_leak` on; or go back to the scalar `field_leak`.

        Raises:
            ConfigError: with a spectrum set, or `field_bptt` 0.
        """
        check_leak(learnable, self.field_leak_spectrum, self.field_bptt)
        if not learnable:
            self.field_leak_logit = None
        elif self.field_leak_logit is None:
            self._begin_learnable_leak()

    def set_field_leak_spectrum(self, spectrum: tuple[float, float] | None) -> None:
        """Fix the leaks, log-spaced over the modes from the first to the second value; None: back to `field_leak`.

        Raises:
            ConfigError: values outside (0, 1), or a learnable leak.
        """
        check_leak(self.field_leak_learnable, spectrum, self.field_bptt)
        self.field_leak_spectrum = spectrum

    def _begin_learnable_leak(self) -> None:
        start = torch.full_like(self.core.state.alpha[:, 0], self.field_leak)  # [n]
        start = start.clamp(SMALLEST_LEARNABLE_LEAK, 1.0 - SMALLEST_LEARNABLE_LEAK)
        self.field_leak_logit = nn.Parameter(torch.logit(start))

    def stabilize_dynamics_parameters(self) -> None:
        """Clamp `eta` to [0.3, 0.95], `c` to [0, 2], `sigma` to [-1, 1] (design 2.3)."""
        self.core.dynamics.stabilize()

    def is_readout(self, parameter_name: str) -> bool:
        return parameter_name.startswith("surface.")

    # -- state ------------------------------------------------------------------------------------------------------

    def reset_state(self, reset_atomizer: bool = True) -> None:
        """Start an episode: field, memory, atoms and history to zero."""
        self.core.state.alpha = torch.zeros_like(self.core.state.alpha)
        self.core.consolidation.persistence = torch.zeros_like(self.core.consolidation.persistence)
        self.flush_atoms()
        if reset_atomizer:
            self.atomizer.reset()

    def flush_atoms(self) -> None:
        self.core.atoms = []
        self.core.energy_history = []

    def detach_field_graph(self) -> None:
        self.core.state.alpha = self.core.state.alpha.detach()

    def streams(self, batch_size: int, atom_flush_every: int) -> BatchedByteTick:
        return BatchedByteTick(self, batch_size, atom_flush_every)

    # -- checkpoints ------------------------------------------------------------------------------------------------

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> "AtomNativeModel":
        known = {field.name for field in fields(ModelConfig)}
        try:
            atomizer = Atomizer(**options["atomizer"]) if "atomizer" in options else None
            return cls(atomizer=atomizer, **{name: value for name, value in options.items() if name in known})
        except (KeyError, TypeError) as error:
            raise CheckpointError(f"the checkpoint's config is not one of this program ({error})") from error

    def config(self) -> ModelConfig:
        """The settings as they are now: attributes may have been changed since the model was built."""
        return ModelConfig(
            d_model=self.d_model,
            n_modes=self.n_modes,
            n_atoms_max=self.n_atoms_max,
            max_payload_bytes=self.max_payload_bytes,
            field_max_rms=self.core.dynamics.max_rms,
            field_leak=self.field_leak,
            field_leak_learnable=self.field_leak_learnable,
            field_leak_spectrum=self.field_leak_spectrum,
            field_bptt=self.field_bptt,
            field_obligatory_hard=self.field_obligatory_hard,
            last_atom_readout=self.surface.last_atom is not None,
            last_atom_dropout=self.surface.last_atom_dropout,
            last_atom_scale=self.surface.last_atom_scale,
            last_atom_scale_adaptive=self.surface.last_atom_scale_adaptive,
            field_loss_weight=self.field_loss_weight,
            field_next_weight=self.field_next_weight,
            field_contrast_weight=self.field_contrast_weight,
            consolidation_threshold=self.core.consolidation.consolidation_threshold,
            enable_merge=self.enable_merge,
            payload_copy=self.surface.payload_enabled,
            efference_every=self.efference_every,
            slow_every=self.slow_every,
        )

    def options(self) -> dict[str, Any]:
        cut = self.atomizer
        atomizer = {
            "max_span_bytes": cut.max_span_bytes,
            "phase_period": cut.phase_period,
            "pack_mode": cut.pack_mode,
        }
        return {**asdict(self.config()), "atomizer": atomizer}

    def sections(self) -> dict[str, Any]:
        core = self.core
        return {
            "compiler": dict(self.compiler.state_dict()),
            "surface": dict(self.surface.state_dict()),
            "core": {
                "encoder": dict(core.encoder.state_dict()),
                "dynamics": dict(core.dynamics.state_dict()),
                "state": {"alpha": core.state.alpha.detach()},
                "consolidation": dict(core.consolidation.state_dict()),
                "energy_history": list(core.energy_history),
                "atoms": [{"payload": list(a.payload), "energy": a.energy, "rho": a.rho} for a in core.atoms],
            },
            "field_probe": None if self.field_probe is None else dict(self.field_probe.state_dict()),
            "field_next_probe": None if self.field_next_probe is None else dict(self.field_next_probe.state_dict()),
            "field_leak_logit": None if self.field_leak_logit is None else self.field_leak_logit.detach(),
        }

    def load_sections(self, content: Mapping[str, Any]) -> None:
        twin = self.from_options(content["config"])
        theirs, mine = twin.options(), self.options()
        for name in self.shape:
            if theirs[name] != mine[name]:
                raise CheckpointError(
                    f"the checkpoint has {name} {theirs[name]}, this model {mine[name]}: use the same"
                )
        twin._check_sections(content)
        self._take_settings(twin)
        self._take_tensors(content)

    def _check_sections(self, content: Mapping[str, Any]) -> None:
        mine = self.sections()
        for name in ("compiler", "surface", "field_probe", "field_next_probe"):
            if mine[name] is None:
                continue
            check_like(content.get(name), mine[name], name)
        if self.field_leak_logit is not None:
            check_tensor(content.get("field_leak_logit"), self.field_leak_logit, "field_leak_logit")
        core = content.get("core")
        if not isinstance(core, Mapping):
            raise CheckpointError("the checkpoint has no core: it is of another model")
        for name in ("encoder", "dynamics", "state", "consolidation"):
            check_like(core.get(name), mine["core"][name], f"core.{name}")
        for index, energy in enumerate(_listed(core, "energy_history")):
            check_tensor(energy, self.core.consolidation.persistence, f"core.energy_history[{index}]")
        for index, atom in enumerate(_listed(core, "atoms")):
            where = f"core.atoms[{index}]"
            try:
                whole = len(bytes(atom["payload"])) > 0 and isinstance(atom["rho"], int)
            except (TypeError, KeyError, ValueError):
                whole = False
            if not whole:
                raise CheckpointError(f"checkpoint entry {where} is not an atom")
            check_tensor(atom.get("energy"), self.core.consolidation.persistence, f"{where}.energy")

    def _take_settings(self, twin: "AtomNativeModel") -> None:
        for name in (
            *("n_atoms_max", "enable_merge", "slow_every", "field_obligatory_hard", "field_bptt", "efference_every"),
            *("field_loss_weight", "field_next_weight", "field_contrast_weight", "field_leak", "field_leak_spectrum"),
        ):
            setattr(self, name, getattr(twin, name))
        for name in ("last_atom_dropout", "last_atom_scale", "last_atom_scale_adaptive", "payload_enabled"):
            setattr(self.surface, name, getattr(twin.surface, name))
        self.core.dynamics.max_rms = twin.core.dynamics.max_rms
        self.core.consolidation.consolidation_threshold = twin.core.consolidation.consolidation_threshold
        self.atomizer = twin.atomizer
        for name in ("field_probe", "field_next_probe", "field_leak_logit"):
            mine, theirs = getattr(self, name), getattr(twin, name)
            if theirs is None:
                setattr(self, name, None)
            elif mine is None:
                setattr(self, name, copy.deepcopy(theirs).to(self.core.state.alpha))

    @torch.no_grad()
    def _take_tensors(self, content: Mapping[str, Any]) -> None:
        core, saved = self.core, content["core"]
        alpha = core.state.alpha
        self.compiler.load_state_dict(content["compiler"])
        self.surface.load_state_dict(content["surface"])
        core.dynamics.load_state_dict(saved["dynamics"])
        core.state.alpha = saved["state"]["alpha"].to(alpha)
        core.consolidation.load_state_dict(saved["consolidation"])
        core.energy_history = [energy.to(alpha) for energy in saved["energy_history"]]
        core.atoms = [LivingAtom(bytes(a["payload"]), a["energy"].to(alpha), a["rho"]) for a in saved["atoms"]]
        for probe, name in ((self.field_probe, "field_probe"), (self.field_next_probe, "field_next_probe")):
            if probe is not None:
                probe.load_state_dict(content[name])
        if self.field_leak_logit is not None:
            self.field_leak_logit.copy_(content["field_leak_logit"])


def built_probe(probe: FieldProbe | None, name: str) -> FieldProbe:
    """The probe, or ConfigError where its weight was turned on after the model was built without it."""
    if probe is None:
        raise ConfigError(f"this model has no probe for {name}: build it with its weight above 0")
    return probe


def _listed(core: Mapping[str, Any], name: str) -> list[Any]:
    value = core.get(name)
    if not isinstance(value, list):
        raise CheckpointError(f"checkpoint entry core.{name} is not a list")
    return value
