"""`python -m tests.injected_sweep --backend injected ...`: the sweep with the backend of tests."""

from collectives import sweep
from collectives._sweep import backend
from tests.injected_backend import INJECTED
from verifyscope import cli

if __name__ == "__main__":
    backend.register(INJECTED)
    cli.run(sweep.application, "python -m tests.injected_sweep")
