"""What a worker sets before NCCL wakes up in it, and what it reads back when the group stands.

    prepare(job, rank, folder)      the combination's variables, NCCL's logging, the binding
    read_back(bound)                what this process, its NCCL, configuration files and the binding
                                    then say

Read back is what C's getenv returns: NCCL puts the settings of configuration files there, and a
plugin may put its own. Only listed settings are looked at, shown as in every record.
"""

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

import torch

from collectives._sweep.backend import Prepared
from collectives._sweep.combination import CHOICE_VARIABLES
from collectives._sweep.job import Job
from collectives._sweep.messages import ConfigurationFile, ReadBack
from ingest import nccl_conf
from verifyscope import settings
from verifyscope.environment import loaded_nccl, nccl_release

LOG_SUBSYSTEMS = "INIT,ENV,GRAPH,TUNING,COLL,P2P,SHM,NET"
TOPOLOGY, GRAPHS = "topology.xml", "graphs.xml"
_LOGGING = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE")
_DUMPS = ("NCCL_TOPO_DUMP_FILE", "NCCL_GRAPH_DUMP_FILE")
_SPEAKERS = ("NCCL_", "TORCH_NCCL_", "CUDA_", "LD_PRELOAD")
_NODES = Path("/sys/devices/system/node")
_PCI = Path("/sys/bus/pci/devices")


def log_file(folder: Path, rank: int) -> Path:
    """Return where the NCCL of this rank logs to while it is probed."""
    return folder / f"rank-{rank}.nccl.log"


def prepare(job: Job, rank: int, folder: Path) -> None:
    """Set this process's environment; nothing of NCCL or CUDA may have run in it."""
    for name in (*CHOICE_VARIABLES, *_LOGGING, *_DUMPS):
        os.environ.pop(name, None)
    os.environ.update(job.combination.environment())
    if not job.backend.chooses:
        return
    if job.purpose != "probe":
        os.environ["NCCL_DEBUG"] = "WARN"  # silent, but for what goes wrong
        return
    os.environ["NCCL_DEBUG"] = "INFO"
    os.environ["NCCL_DEBUG_SUBSYS"] = LOG_SUBSYSTEMS
    os.environ["NCCL_DEBUG_FILE"] = str(log_file(folder, rank))
    if rank == job.first_rank:
        os.environ["NCCL_TOPO_DUMP_FILE"] = str(folder / TOPOLOGY)
        os.environ["NCCL_GRAPH_DUMP_FILE"] = str(folder / GRAPHS)


def bind(job: Job, rank: int, device: torch.device) -> str | None:
    """Bind this process as the combination asks; return "numa" or "none", or why it could not."""
    if job.combination.bind is None:
        return None
    if job.combination.bind == "none":
        return "none"
    cpus = _nearby(device) if device.type == "cuda" else _share(rank - job.first_rank, job)
    if not cpus:
        return "none: this machine tells no NUMA nodes"
    try:
        os.sched_setaffinity(0, cpus)
    except (OSError, AttributeError) as error:
        return f"none: {type(error).__name__}"
    return "numa" if os.sched_getaffinity(0) == cpus else "none: the system changed it"


def _nearby(device: torch.device) -> set[int]:
    """Return the CPUs beside a GPU."""
    found = torch.cuda.get_device_properties(device)
    parts = [getattr(found, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return set()
    name = "{:04x}:{:02x}:{:02x}.0".format(*known)
    return _cpus(_PCI / name / "local_cpulist")


def _share(local: int, job: Job) -> set[int]:
    """Return the CPUs of the NUMA node that a rank without a GPU falls on."""
    nodes = sorted(_NODES.glob("node[0-9]*"), key=lambda path: int(path.name[4:]))
    if not nodes:
        return set()
    return _cpus(nodes[local * len(nodes) // job.local_ranks] / "cpulist")


def _cpus(file: Path) -> set[int]:
    """Read "0-3,8" of the CPUs that this process may use."""
    try:
        ranges = [part.partition("-") for part in file.read_text().strip().split(",") if part]
        found = {cpu for low, _, high in ranges for cpu in range(int(low), int(high or low) + 1)}
        return found & os.sched_getaffinity(0)
    except (OSError, ValueError, AttributeError):
        return set()


def read_back(bound: str | None, prepared: Prepared | None = None) -> ReadBack:
    """Return what is in effect in this process now, with what its backend tells of itself."""
    facts = {} if prepared is None else dict(prepared.facts)
    own = None if prepared is None else prepared.nccl
    getenv = ctypes.CDLL(None).getenv
    getenv.argtypes, getenv.restype = [ctypes.c_char_p], ctypes.c_char_p
    told = (name for name in settings.SETTINGS if name.startswith(_SPEAKERS))
    found: dict[str, str] = {}
    for name in told:
        value = getenv(name.encode())
        if value is not None and name not in (*_LOGGING, *_DUMPS):
            found[name] = value.decode(errors="replace")
    return ReadBack(
        settings=settings.in_force(found),
        files=_configuration_files(),
        bound=bound,
        nccl=own or nccl_in_use(),
        facts=facts,
    )


def nccl_in_use() -> str | None:
    """Return the version of the NCCL that torch calls in this process; None where there is none.

    It is asked of the library: two may be loaded, and torch.cuda.nccl.version() is the one that
    torch was compiled against.
    """
    group = getattr(torch.distributed, "ProcessGroupNCCL", None)
    ask: Callable[[], tuple[int, ...]] | None = getattr(group, "get_runtime_nccl_version", None)
    if ask is not None:
        return ".".join(map(str, ask()))
    number = ctypes.c_int()
    try:  # the one that is found first, as torch finds it
        failed = ctypes.CDLL(None).ncclGetVersion(ctypes.byref(number))
    except AttributeError:
        return loaded_nccl()
    return None if failed else nccl_release(number.value)


def _configuration_files() -> tuple[ConfigurationFile, ...]:
    """Return what NCCL's own configuration files set beside the environment of this process."""
    by_file: dict[str, dict[str, str]] = {}
    for known in nccl_conf.configured(os.environ).values():
        by_file.setdefault(known.file, {})[known.name] = known.value
    return tuple(ConfigurationFile(name, said) for name, said in by_file.items())
