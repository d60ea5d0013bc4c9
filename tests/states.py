"""Saved states: there and back through a file as a checkpoint goes, and what they are made of."""

import io
from typing import Any

import torch


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def leaf_types(value: object) -> set[type]:
    """The types of all keys and values but the containers', which are dict, list and tuple."""
    if isinstance(value, dict):
        return leaf_types([*value.keys(), *value.values()])
    if isinstance(value, (list, tuple)):
        return set().union(*(leaf_types(inner) for inner in value))
    return {type(value)}
