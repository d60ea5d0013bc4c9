"""Where to compute."""

import torch

from atomnative.errors import ConfigError


def open_device(name: str | torch.device) -> torch.device:
    """The device of that name; ConfigError where it is not there or does not compute."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except Exception as error:  # each backend has its own way to say that it is not there
        raise ConfigError(f"--device {name} is not available here: use cpu") from error
    return device
