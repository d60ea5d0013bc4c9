"""The names that others build on."""

import atomnative

NAMES = (
    *("Atomizer", "AtomPacket", "ByteCorpus", "BatchedByteStream", "byte_tick_feature_table", "StreamingPacketSource"),
    *(
        "resolve_shard_paths",
        "AtomNativeModel",
        "BatchedByteTick",
        "BatchedUnsupported",
        "StackModel",
        "StackStreams",
        "load_model",
        "generate_reply",
    ),
)


def test_the_public_names_are_importable_from_the_package() -> None:
    for name in NAMES:
        assert hasattr(atomnative, name), name


def test_what_a_user_can_do_wrong_is_also_the_built_in_error_expected_of_it() -> None:
    from atomnative import errors

    assert issubclass(errors.ShardNotFound, FileNotFoundError)
    for kind in (errors.ConfigError, errors.CorpusError, errors.CheckpointError, errors.BatchedUnsupported):
        assert issubclass(kind, ValueError)
