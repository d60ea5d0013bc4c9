"""The architectures by name, and a model from a checkpoint."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from atomnative.checkpoint.file import naming
from atomnative.checkpoint.folder import find_checkpoint
from atomnative.errors import CheckpointError
from atomnative.model.atom.single import AtomNativeModel
from atomnative.model.device import open_device
from atomnative.model.protocol import ByteModel
from atomnative.model.stack.single import StackModel

ARCHITECTURES: dict[str, type[ByteModel]] = {model.arch: model for model in (AtomNativeModel, StackModel)}


def model_from_checkpoint(content: Mapping[str, Any]) -> ByteModel:
    """The model in a checkpoint's content, on the CPU.

    Raises:
        CheckpointError: an unknown architecture, or entries that do not fit one another.
    """
    arch = content["config"].get("arch")
    if not isinstance(arch, str) or arch not in ARCHITECTURES:
        raise CheckpointError(
            f"unknown architecture {arch!r} in the checkpoint: this program knows {', '.join(ARCHITECTURES)}"
        )
    model = ARCHITECTURES[arch].from_options(content["config"])
    model.load_sections(content)
    return model


def load_model(checkpoint: str | os.PathLike[str], device: str | torch.device = "cpu") -> ByteModel:
    """The model in a checkpoint file, or in the newest good one of a run folder; in evaluation mode.

    Raises:
        CheckpointError: no such file, or none that can be read.
        ConfigError: no such device.
    """
    where = open_device(device)
    path, content = find_checkpoint(Path(checkpoint), warn=lambda text: print(f"atomnative: {text}", file=sys.stderr))
    with naming(path):
        return model_from_checkpoint(content).to(where).eval()
