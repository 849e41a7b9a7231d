"""Facts about GPUs that decide whether a kernel can run on them.

`SHARED_BYTES_PER_BLOCK`: the most shared memory that one block may have, static and dynamic
together, by compute capability: 163, 99, 227, 227 and 99 KiB, from the table "Technical
Specifications per Compute Capability" of the CUDA programming guide. CUDA keeps
`RESERVED_SHARED_BYTES` more for itself.
"""

from collections.abc import Mapping
from types import MappingProxyType

SHARED_BYTES_PER_BLOCK: Mapping[int, int] = MappingProxyType(
    {80: 166_912, 89: 101_376, 90: 232_448, 100: 232_448, 120: 101_376}
)
RESERVED_SHARED_BYTES = 1024
