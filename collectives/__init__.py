"""Collectives under test: `python -m collectives.sweep --gpus 8`."""

from verifyscope import lacking

lacking.watch()
