"""AdamW with a group for the readout, saved and restored by parameter names."""

from collections.abc import Mapping
from typing import Any

import torch

from atomnative.checkpoint.tensors import check_like
from atomnative.errors import CheckpointError
from atomnative.model.protocol import ByteModel

MAX_GRADIENT_NORM = 1.0


def build_optimizer(
    model: ByteModel, *, learning_rate: float, surface_learning_rate: float, weight_decay: float
) -> torch.optim.AdamW:
    """AdamW over all parameters, in two groups: the readout's and the others, each with its peak rate in `peak_lr`."""
    readout = [(name, p) for name, p in model.named_parameters() if model.is_readout(name)]
    others = [(name, p) for name, p in model.named_parameters() if not model.is_readout(name)]
    groups = [(readout, surface_learning_rate), (others, learning_rate)]
    return torch.optim.AdamW(
        [{"params": named, "lr": rate, "peak_lr": rate} for named, rate in groups if named],
        weight_decay=weight_decay,
        fused=True,
    )


def set_rates(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Set each group's rate to its peak times `factor`."""
    for group in optimizer.param_groups:
        group["lr"] = group["peak_lr"] * factor


def apply_gradients(model: ByteModel, optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    """Backward, clip to norm 1, step, and bring the trained scalars back into their bounds."""
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM)
    optimizer.step()
    model.stabilize_dynamics_parameters()


def restore_optimizer(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> bool:
    """Take over the moments of a saved state of the same parameters; False, and nothing changed, where they differ.

    Rates and decay stay this run's: they may be changed on purpose.

    Raises:
        CheckpointError: the saved state is damaged.
    """
    try:
        names = [list(group["param_names"]) for group in saved["param_groups"]]
        indices = [list(group["params"]) for group in saved["param_groups"]]
        moments = saved["state"]
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"the checkpoint's optimizer state is unreadable ({error})") from error
    here = [list(group["param_names"]) for group in optimizer.param_groups]
    if names != here:
        return False
    for group, group_indices in zip(optimizer.param_groups, indices, strict=True):
        for name, parameter, index in zip(group["param_names"], group["params"], group_indices, strict=True):
            if index in moments:
                like = {"step": torch.tensor(0.0), "exp_avg": parameter, "exp_avg_sq": parameter}
                check_like(moments[index], like, f"training.optimizer.{name}")
    kept = [{key: group[key] for key in ("lr", "peak_lr", "weight_decay")} for group in optimizer.param_groups]
    optimizer.load_state_dict(dict(saved))
    for group, values in zip(optimizer.param_groups, kept, strict=True):
        group.update(values)
    return True
