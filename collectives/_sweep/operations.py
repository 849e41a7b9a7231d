"""The collectives that a sweep can time, by name: a new one is one entry here and a file."""

from collections.abc import Mapping
from types import MappingProxyType

from collectives._sweep.collective import Collective
from collectives.all_gather import ALL_GATHER
from collectives.all_reduce import ALL_REDUCE
from collectives.all_to_all import ALL_TO_ALL
from collectives.reduce_scatter import REDUCE_SCATTER

OPERATIONS: Mapping[str, Collective] = MappingProxyType(
    {known.name: known for known in (ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, ALL_TO_ALL)}
)
