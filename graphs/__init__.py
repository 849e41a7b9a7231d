"""A model's layers as a list of ops, predicted and run: `python -m graphs.replay`.

With --device a stub of one rank of tensor parallelism is built from graphs/layers.py
(`graphs.stub`) and its passes are measured: eager, as one CUDA graph, as graphs with attention or
the collectives between (`graphs.capture`); each part is taken out and kept in alone
(`graphs.ablation`); a profiler tells the time by class (`graphs.class_times`). A CPU runs a
shrunken stub, eager, on gloo ranks.

Records of measured passes (names: verifyscope.passes). All are source "measured", implementation
"stub", case "<model>-tp8-rows4-context8192-layers61-<all-reduce>", mode the form of attention,
launch eager | graph | piecewise, ranks the processes. dims: model (with "-shrunk" or "-first-8"
behind a name whose sizes or layers are not all there), tp, rows, requests, context, tree, layers,
all_reduce (none, one-rank, delay:33us, real), shrunk, weight_sets (distinct layers), outside
(attention or collectives) where pieces are captured. method: pass, an id that the records of one
case share; impl_<kind>, what computed it, and why not another; copied_into, steps whose inputs are
copied; held_bytes. Times are of a whole pass, of the slowest rank.

- op "forward", part "forward", one a mode: median_s right behind another pass (of a CPU: of one
  pass), cache "cold" where a pass touches 3 x L2. method: host_launch_s, from_idle_s (from launch
  to end on an idle device), each with _low_s and _high_s; launches; rank_0_median_s, ...; clock,
  rounds, stopped_by. touched_bytes, flops, floor_s as predicted, without collectives. proof: what
  the captured graphs hold. A mode whose capture broke is "error", one whose replay differs from
  eager "failed", each with the reason.
- op "forward_account", part "forward": the whole of the ablation's rounds. method: marginal_sum_s,
  marginal_unexplained_s, _low_s, _high_s, _share; isolated_*, in_context_* alike; all_reduce_skew_s
  and rank_0_all_reduce_s, ... with several ranks. op "forward_nothing", part "host": of nothing.
- ops "forward_without" (median_s of the pass without the part; method cost_s, cost_low_s,
  cost_high_s: its marginal cost, which may be below zero), "forward_only" (of the pass with nothing
  else: its isolated cost) and "forward_part" (its cost where it stands), one of each a part.
- op "forward_class", part a class: its time by a profiler; method by (kernels, or spans of steps),
  kernels, unclassified. ops "forward_busy" and "forward_idle": with and between kernels.
- op "forward_plan", part "metadata": what attention plans on the host for a step.
- ops "graph_instantiate", "graph_upload", "graph_first_launch", part "host": once a mode; method
  graphs, copies, nodes_kernel, nodes_memcpy, ... or not_opened. A `Finding` "captured" lists the
  kernels of the one graph.
- op "forward_fit", part "forward": the line through passes of several rows or contexts, which one
  of them holds in its dims; median_s is that of the largest. method: axis, other (the value of the
  other axis), base_s, slope_s (a row, or a token of context), worst_s, sizes; ratio, ratio_low,
  ratio_high of the largest against the smallest, and grows: grows | does not grow | unsure.
"""

from verifyscope import lacking

lacking.watch()
