"""Collectives under test: `python -m collectives.sweep --gpus 8`."""
