"""What records of measured passes call themselves: graphs.replay writes, the report reads.

All have implementation STUB, and those of one case share method["pass"]; `graphs` says what each
holds. Only FORWARD is a whole pass as serving would run it.
"""

STUB = "stub"

FORWARD = "forward"  # a whole pass in a mode
ACCOUNT = "forward_account"  # the whole of an ablation, with its closure
NOTHING = "forward_nothing"  # a pass of which everything is taken out
WITHOUT = "forward_without"  # a pass without a part
ONLY = "forward_only"  # a pass of one part
IN_CONTEXT = "forward_part"  # a part where it stands in a whole pass
CLASS = "forward_class"  # a class, by a profiler
BUSY, IDLE = "forward_busy", "forward_idle"  # with and without a kernel, by a profiler
PLAN = "forward_plan"  # what attention plans on the host for a step
INSTANTIATE, UPLOAD = "graph_instantiate", "graph_upload"  # what a captured graph costs once
FIRST_LAUNCH = "graph_first_launch"
FIT = "forward_fit"  # base and slope over rows or context, of several passes

ATTENTION_OUTSIDE, COLLECTIVES_OUTSIDE = "attention", "collectives"  # dims["outside"], piecewise

# What an all-reduce of four rows took others between eight PCIe GPUs (verifyscope/published.csv);
# one GPU has nobody to reduce with, and its passes wait as long.
PUBLIC_ALL_REDUCE_US = "33"
