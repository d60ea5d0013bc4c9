"""What a user can do wrong. Each message is one line: what is wrong, which value or file, and what to do about it.

The command line turns any `UserError` into that line and exit code 2. Each kind is also the built-in exception
that a caller of the library would expect.
"""


class UserError(Exception):
    """Something outside the program is wrong; the message names the culprit and the remedy."""


class ConfigError(UserError, ValueError):
    """A setting out of its domain, or two settings that contradict each other."""


def check_seed(seed: int) -> None:
    """ConfigError unless torch takes the seed as it is."""
    if not 0 <= seed < 2**63:
        raise ConfigError(f"--seed must be from 0 to 2**63 - 1, not {seed}")


class CorpusError(UserError, ValueError):
    """A shard that cannot be used as bytes, or a corpus that differs from the one a state was saved on."""


class ShardNotFound(UserError, FileNotFoundError):
    """A path or a pattern that gave no file."""


class CheckpointError(UserError, ValueError):
    """A file that is not a whole checkpoint of this program, or not one of this model's shape."""


class RunFolderError(UserError, OSError):
    """An output folder that cannot be used: not writable, or taken by another trainer."""


class BatchedUnsupported(UserError, ValueError):
    """An option that only the single-stream form has (design 2.8), asked of the batched form."""


class NotAvailableYet(UserError, NotImplementedError):
    """An option that can be set, and that no form of the model computes yet."""
