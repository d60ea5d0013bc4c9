"""Saved tensors against a skeleton: names, shapes and dtypes, checked before anything is assigned."""

from collections.abc import Mapping

import torch

from atomnative.errors import CheckpointError


def check_like(saved: object, like: Mapping[str, torch.Tensor], where: str) -> None:
    """Raise CheckpointError, naming the entry, unless `saved` has exactly the names, shapes and kinds of `like`."""
    if not isinstance(saved, Mapping):
        raise CheckpointError(f"checkpoint entry {where} is a {type(saved).__name__}, not a table of tensors")
    missing, extra = sorted(like.keys() - saved.keys()), sorted(saved.keys() - like.keys())
    if missing:
        raise CheckpointError(f"checkpoint entry {where} lacks {missing[0]}: it is of another model")
    if extra:
        raise CheckpointError(f"checkpoint entry {where} has an unknown {extra[0]}: it is of another model")
    for name, tensor in like.items():
        check_tensor(saved[name], tensor, f"{where}.{name}")


def check_tensor(saved: object, like: torch.Tensor, where: str) -> None:
    """Raise CheckpointError unless `saved` is a tensor of the shape and kind of `like`."""
    if not isinstance(saved, torch.Tensor):
        raise CheckpointError(f"checkpoint entry {where} is a {type(saved).__name__}, not a tensor")
    if saved.shape != like.shape:
        raise CheckpointError(f"checkpoint entry {where} has shape {list(saved.shape)}, this model {list(like.shape)}")
    if saved.dtype.is_floating_point != like.dtype.is_floating_point:
        raise CheckpointError(f"checkpoint entry {where} is {saved.dtype}, this model {like.dtype}")
