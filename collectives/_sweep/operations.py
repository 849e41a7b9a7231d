"""The collectives that a sweep can time, by name: a new one is a file in collectives/operations/.

Each public module there declares one `Collective`; no other edit makes it known.
"""

import importlib
import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from collectives import operations
from collectives._sweep.collective import Collective


def discovered(folders: Iterable[str]) -> Iterator[Collective]:
    """Yield the collective of each public module in `folders`, sorted by the module's name.

    TypeError for a module that declares none, or several.
    """
    for name in sorted(found.name for found in pkgutil.iter_modules(folders)):
        if name.startswith("_"):
            continue
        module = importlib.import_module(f"{operations.__name__}.{name}")
        declared = [value for value in vars(module).values() if isinstance(value, Collective)]
        if len(declared) != 1:
            raise TypeError(
                f"collectives/operations/{name}.py declares {len(declared)} collectives, not one; "
                f"if it is no collective, start its name with an underscore"
            )
        yield declared[0]


OPERATIONS: Mapping[str, Collective] = MappingProxyType(
    {known.name: known for known in discovered(operations.__path__)}
)
