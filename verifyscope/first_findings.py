"""Which finding stands first, by its name: in what a command prints, and in a report's verdict.

What makes values wrong or times meaningless comes first, then what costs most, then what only
describes. A finding that is not named here never stands first.
"""

OF_LOGS = (
    "corrupt-values",
    "drafter-broken",
    "graph-nodes-hidden",
    "straggler-rank",
    "launch-bound",
    "host-sync",
    "graph-piecewise-fallback",
    "kernel-cliff",
    "verify-slower-than-plain-rows-matched",
    "unexplained-difference",
    "setting-without-effect",
    "graph-off",
    "acceptance-suspiciously-high",
    "fixed-cost-not-sharded",
    "shared-gpu",
    "single-rank",
    "collective-spin",
    "narrow-link",
    "setting-ignored",
    "warm-benchmark",
    "break-even",
    "speculation-by-load",
    "verify-slower-than-plain",
    "setting-with-effect",
    "acceptance-drives-rate",
    "cycle",
    "nccl-log",
    "columns-compared",
    "drafter-mismatch",
    "model-pair",
    "drafter-fits",
    "drafter-size",
    "model-size",
    "no-gpu-events",
    "trace-breakdown",
)
# What makes values wrong or stops a server comes first, then what makes it slow.
OF_HOSTS = (
    "corrupt-values",
    "p2p-capable-but-failed-write-verify",
    "p2p-write-hangs",
    "collective-hangs",
    "p2p-write-fails",
    "collective-fails",
    "iommu-faults",
    "gpu-xid",
    "collective-spin",
    "graph-simple-order",
    "ll128-on-pcie",
    "ll128-past-gate",
    "acs-redirect",
    "iommu-translated",
    "no-p2p",
    "p2p-partial",
    "p2p-refused",
    "net-on-one-node",
    "shm-because-p2p-disabled",
    "shm-because-p2p-level",
    "shm-transport",
    "plugin-injected-env",
    "config-injected-env",
    "config-line-without-effect",
    "narrow-link",
    "slot-below-card",
    "gpus-of-different-links",
    "pcie-errors",
    "concurrent-writes-slow",
    "p2p-slower-than-host",
    "near-slower-than-far",
    "numa-split",
)


def place(name: str) -> int | None:
    """Return how early a finding of that name stands, 0 the earliest; None where it is not named.

    Those of hosts stand beside those of logs, each at its place among its own.
    """
    places = [names.index(name) for names in (OF_LOGS, OF_HOSTS) if name in names]
    return min(places, default=None)
