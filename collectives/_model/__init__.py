"""NCCL's cost model, what it predicts, and fits of what was measured."""
