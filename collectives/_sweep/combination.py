"""What the workers of one combination are started with, and what its rows look like as records.

A `Combination` is one point of all axes: algorithm, protocol, channels, buffer, P2P, graph file,
GPU order, binding, launch options. None leaves an axis to NCCL. `verdict` says whether it is run,
run as `unsafe` (LL128 on PCIe may corrupt), or only listed as `unsupported`; `reason` says why.

The records of a sweep (`Measurement`), one for each combination, point, launch and depth:

    id              a digest of run and row: the same when the run is resumed, so that of two lines
                    with one id the later one counts; raw samples stand under it in samples.jsonl
    op              "all_reduce", ...; part is the same word where verifyscope/parts.py has it
    implementation  `label` of the combination: "nccl" is NCCL's own choice, "nccl ring/ll",
                    "nccl ring/ll channels=4 graph=x.xml"; with gloo "gloo ..."; what reduces in
                    another way has its own name, such as "symm_mem_one_shot" (_others)
    case            "57344B-bfloat16-in-place"; "every-size" where nothing was launched
    dims            bytes, elements, dtype, in_place, redop, and tokens, model where a model's
    launch, depth   eager or graph; 1 is isolated, more is that many calls in a row (twice the
                    model's layers, 122 for kimi-k2.5), whose time is divided by them
    status          ok · ignored (NCCL did something else) · unsupported · error · hang · corrupt;
                    a time stands only where the probe said ok
    requested       what was asked for: `requested` of the combination, the NCCL settings that were
                    inherited, and as "nccl" the version that takes the place of torch's
    effective       what the ranks read back and NCCL's log shows: algorithm, protocol ("ring",
                    "ll"), channels (of this call), transport, nccl_version, the settings in effect
                    on all ranks by their names, configuration_file, plugin; nccl, as each rank's
                    library gives it; versions of what else is called; absent is not known
    proof           the line of the probe's log, and on how many ranks settings were read back
    median_s ...    of all samples of all starts; low_s and high_s are the 95 % interval, widened to
                    the lowest and highest median of a start; p90_s, p99_s; count samples
    flags           unsafe, non-monotone (less time than a smaller size), measured-again,
                    launch-exposed, single-rank, few-starts (fewer than 3)
    method          starts; start_0_median_s, start_1_median_s, ...; spread, which is (highest -
                    lowest median of a start) / median; samples_per_start "20 20 20", in the order
                    of the raw samples; iterations, warmup, sample, clock, interval, checked, stress

Beyond noise means beyond both intervals and both spreads. What a start costs is a row of its own:
op "process_start", part "host", case "process-start"; what the whole sweep took is op "sweep",
part "host", case "measuring", with the measured share in `method`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal

Verdict = Literal["run", "unsafe", "unsupported"]
Binding = Literal["numa", "none"]

# What the settings call them; NCCL reads any case.
ALGORITHM_TOKENS: Mapping[str, str] = {
    "ring": "Ring",
    "tree": "Tree",
    "collnetdirect": "CollNetDirect",
    "collnetchain": "CollNetChain",
    "nvls": "NVLS",
    "nvlstree": "NVLSTree",
    "pat": "PAT",
}
# All that is listed but LL128: the one list with ^ that does not switch LL128 on.
NOT_LL128 = "^ll128"
PROTOCOL_TOKENS: Mapping[str, str] = {
    "ll": "LL",
    "ll128": "LL128",
    "simple": "Simple",
    NOT_LL128: "^LL128",
}
# Launch options by their name on the command line.
LAUNCH_VARIABLES: Mapping[str, str] = {
    "mode": "NCCL_LAUNCH_MODE",
    "graph-mixing": "NCCL_GRAPH_MIXING_SUPPORT",
    "graph-register": "NCCL_GRAPH_REGISTER",
    "graph-stream-ordering": "NCCL_GRAPH_STREAM_ORDERING",
    "order-implicit": "NCCL_LAUNCH_ORDER_IMPLICIT",
    "cta-policy": "NCCL_CTA_POLICY",
    "cga-cluster": "NCCL_CGA_CLUSTER_SIZE",
    "high-priority": "TORCH_NCCL_HIGH_PRIORITY",
    "connections": "CUDA_DEVICE_MAX_CONNECTIONS",
}
# The variables that a combination sets or clears: what is inherited of them does not count.
CHOICE_VARIABLES = ("NCCL_ALGO", "NCCL_PROTO")


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """One point of all axes; names of algorithms and protocols are those of ingest/nccl_names.py.

    backend: what moves the data, "nccl" or "gloo".
    channels: of the communicator. buffer_bytes: of the protocol Simple. p2p: False goes through
    host memory, True talks directly at any distance. graph_file: the path of an XML of rings and
    trees. gpu_order: the device of each rank of a node. launch: options of LAUNCH_VARIABLES.
    own: settings of CHOICE_VARIABLES as the user's own environment has them.
    """

    backend: str
    algorithm: str | None = None
    protocol: str | None = None
    channels: int | None = None
    buffer_bytes: int | None = None
    p2p_level: str | None = None
    p2p: bool | None = None
    graph_file: str | None = None
    gpu_order: tuple[int, ...] = ()
    bind: Binding | None = None
    launch: tuple[tuple[str, str], ...] = ()
    own: tuple[tuple[str, str], ...] = ()
    verdict: Verdict = "run"
    reason: str = ""

    @property
    def choice(self) -> str:
        """Return "ring/ll"; "default" where NCCL chooses, "ring" where it chooses the protocol."""
        words = [word for word in (self.algorithm, self.protocol) if word is not None]
        return "/".join(words) or ("as-set" if self.own else "default")

    @property
    def label(self) -> str:
        """Return the name that records have as implementation: no two of a plan share it."""
        words = [self.backend, *([] if self.choice == "default" else [self.choice])]
        return " ".join([*words, *(f"{name}={value}" for name, value in self._axes().items())])

    @property
    def slug(self) -> str:
        """Return the label as a file name."""
        return re.sub(r"[^a-z0-9]+", "-", self.label.lower()).strip("-")

    @property
    def launched(self) -> bool:
        """Say whether workers are started for it."""
        return self.verdict != "unsupported"

    def environment(self) -> dict[str, str]:
        """Return the variables that a worker sets, with their real paths."""
        found = dict(self.own)
        if self.algorithm is not None:
            found["NCCL_ALGO"] = ALGORITHM_TOKENS[self.algorithm]
        if self.protocol is not None:
            found["NCCL_PROTO"] = PROTOCOL_TOKENS[self.protocol]
        if self.channels is not None:
            found |= {"NCCL_MIN_CTAS": str(self.channels), "NCCL_MAX_CTAS": str(self.channels)}
        if self.buffer_bytes is not None:
            found["NCCL_BUFFSIZE"] = str(self.buffer_bytes)
        if self.p2p is not None:
            found["NCCL_P2P_DISABLE"] = "0" if self.p2p else "1"
            if self.p2p:
                found["NCCL_P2P_LEVEL"] = "SYS"
        if self.p2p_level is not None:
            found["NCCL_P2P_LEVEL"] = self.p2p_level
        if self.graph_file is not None:
            found["NCCL_GRAPH_FILE"] = self.graph_file
        return found | {LAUNCH_VARIABLES[name]: value for name, value in self.launch}

    def requested(self) -> dict[str, str]:
        """Return what is asked for, fit for a record: variables, and the axes that have none."""
        found = self.environment()
        if self.graph_file is not None:
            found["NCCL_GRAPH_FILE"] = PurePath(self.graph_file).name
        if self.gpu_order:
            found["gpu_order"] = ",".join(map(str, self.gpu_order))
        if self.bind is not None:
            found["bind"] = self.bind
        return found

    def _axes(self) -> dict[str, str]:
        """Return the axes beyond algorithm and protocol as a label has them."""
        found = {
            "channels": self.channels,
            "buffer": self.buffer_bytes,
            "p2p-level": self.p2p_level,
            "p2p": None if self.p2p is None else ("on" if self.p2p else "off"),
            "graph": None if self.graph_file is None else PurePath(self.graph_file).name,
            "gpus": ",".join(map(str, self.gpu_order)) or None,
            "bind": self.bind,
            **dict(self.launch),
        }
        return {name: str(value) for name, value in found.items() if value is not None}
