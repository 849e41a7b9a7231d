"""How a stub is asked for, built from kernels, run by ranks, taken apart and recorded."""
