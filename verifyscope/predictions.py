"""What predicted records call themselves: graphs.replay writes them, the report reads them.

Ops of a pass have the implementation ROOFLINE (the floor) and, where somebody measured them, one of
COMPONENTS beside it. What is said of the pass as a whole has part WHOLE, which is never added to
the parts it holds, and one of the ops below. Those of one pass share method["prediction"].
"""

ROOFLINE = "roofline"
PUBLIC, MEASURED = "public component", "measured component"
COMPONENTS = (PUBLIC, MEASURED)

WHOLE = "forward"
TIMELINE = "timeline"  # the pass eager, piecewise and as one graph
WHAT_IF = "what_if"  # a lever
EXCESS = "excess"  # what a hypothesis would need of a pass that took longer
FIT = "fit"  # base and slope over rows or context, of several passes
AGREEMENT = "agreement"  # a prediction beside the measured pass of its mode
EAGER, PIECEWISE, GRAPH = "eager", "piecewise", "graph"

# In the header of a Chrome trace that graphs/chrome_trace.py made: nothing in it was measured.
PREDICTED_TRACE = "verifyscope_predicted"
