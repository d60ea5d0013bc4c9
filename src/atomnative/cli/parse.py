"""Flags to a config; where a run is resumed, what was not said is as in the checkpoint."""

import contextlib
import io
from collections.abc import Sequence
from dataclasses import fields
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import tyro

from atomnative.errors import CheckpointError, ConfigError, UserError
from atomnative.training.config import OF_THIS_START, RunConfig
from atomnative.training.run import Found, find_start

Config = TypeVar("Config", bound=RunConfig)
Parsed = TypeVar("Parsed")
FRAME = " \u2500\u2502\u256d\u256e\u2570\u256f"
"""What draws the frames around the parser's complaints."""


def parse(config_class: type[Parsed], argv: Sequence[str], prog: str, default: Parsed | None = None) -> Parsed:
    """The config that the flags give; UserError, in one line, for flags that cannot be parsed."""
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            if default is None:
                return tyro.cli(config_class, args=argv, prog=prog)
            return tyro.cli(config_class, args=argv, prog=prog, default=default)
    except SystemExit as stopped:
        if not stopped.code:
            raise
        # The frame's first line is a title that says less than what follows it.
        words = (line.strip(FRAME) for line in complaint.getvalue().splitlines() if not line.startswith("\u256d"))
        raise UserError(" ".join(filter(None, words))) from None


def parse_run(config_class: type[Config], argv: Sequence[str], prog: str) -> tuple[Config, Found | None]:
    """The config, and the checkpoint that the run goes on from."""
    said = parse(config_class, argv, prog)
    said.check()
    start = find_start(said)
    if start is None:
        return said, None
    saved = config_class(**_saved(config_class, said, start))
    try:
        saved.check()
    except ConfigError as error:
        raise CheckpointError(f"checkpoint {start.path} is damaged, use another one: {error}") from error
    return parse(config_class, argv, prog, saved), start


def _saved(config_class: type[RunConfig], said: RunConfig, start: Found) -> dict[str, Any]:
    config = start.content["config"]
    saved = {**config, **start.training.get("settings", {})}
    if "max_payload_bytes" in config:
        saved.setdefault("max_span_bytes", config["max_payload_bytes"])
    if said.data or said.data_glob:  # another way of naming the corpus replaces the whole of it
        saved = {name: value for name, value in saved.items() if name not in ("data", "data_glob")}
    names = {field.name for field in fields(config_class)} - OF_THIS_START
    known = {name: value for name, value in saved.items() if name in names}
    hints = get_type_hints(config_class)
    for name, value in known.items():
        if not _fits(value, hints[name]):
            raise CheckpointError(f"checkpoint {start.path} has {name} {value!r}: it is damaged, use another one")
    return {name: tuple(value) if isinstance(value, list) else value for name, value in known.items()}


def _fits(value: object, hint: Any) -> bool:
    """Whether a checkpoint's plain value can stand for a setting of that type."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    plain = {tuple: list, float: (int, float), Literal: str}
    return any(isinstance(value, plain.get(get_origin(kind) or kind, kind)) for kind in kinds)
