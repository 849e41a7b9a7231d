"""The small ops that a layer needs beside attention and routed experts."""

from kernels.layer._rope_tables import cos_sin_table

__all__ = ["cos_sin_table"]
