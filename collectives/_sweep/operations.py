"""The collectives that a sweep can time, by name: a new one is one entry here and a file."""

from collections.abc import Mapping
from types import MappingProxyType

from collectives._sweep.collective import Collective
from collectives.all_reduce import ALL_REDUCE

OPERATIONS: Mapping[str, Collective] = MappingProxyType({"all_reduce": ALL_REDUCE})
