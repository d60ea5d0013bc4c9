"""Train and run tokenizer-free language models on raw bytes: one byte is one tick of a recurrent field."""

from atomnative.data.atomizer import Atomizer as Atomizer
from atomnative.data.atomizer import AtomPacket as AtomPacket
from atomnative.data.atomizer import byte_tick_feature_table as byte_tick_feature_table
from atomnative.data.corpus import ByteCorpus as ByteCorpus
from atomnative.data.corpus import resolve_shard_paths as resolve_shard_paths
from atomnative.data.source import StreamingPacketSource as StreamingPacketSource
from atomnative.data.stream import BatchedByteStream as BatchedByteStream
from atomnative.errors import BatchedUnsupported as BatchedUnsupported
from atomnative.inference.chat import generate_reply as generate_reply
from atomnative.model.atom.batched import BatchedByteTick as BatchedByteTick
from atomnative.model.atom.single import AtomNativeModel as AtomNativeModel
from atomnative.model.registry import load_model as load_model
from atomnative.model.stack.batched import StackStreams as StackStreams
from atomnative.model.stack.single import StackModel as StackModel

__version__ = "0.1.0"
