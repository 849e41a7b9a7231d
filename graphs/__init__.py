"""A model's layers as a list of ops, predicted and replayed: `python -m graphs.replay`."""
