"""A global index of KV-cache blocks over many inference engines, usable on its own.

`hashing` turns token ids into block hashes, `memory` and `redis_index` hold which engine has which block, and
`subscriber` keeps them true from the engines' KV events. ``index`` has the words and the protocol.
"""

from kvindex.hashing import block_hashes, chain_root
from kvindex.index import BlockIndex, IndexStats, Match, Mode, Tier
from kvindex.memory import MemoryIndex

__all__ = ["BlockIndex", "IndexStats", "Match", "MemoryIndex", "Mode", "Tier", "block_hashes", "chain_root"]
