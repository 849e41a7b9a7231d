"""The calculator of `python -m reports.speculation`: what is asked, its answer, how it is told."""
