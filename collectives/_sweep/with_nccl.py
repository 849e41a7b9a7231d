"""`python -m collectives._sweep.with_nccl FD LIBRARY`: the fork server, on that NCCL.

torch is linked against libnccl.so.2 and CuPy asks for it by that name. What is loaded already and
has it is what both of them get, and what is loaded globally is where their symbols are found first:
so the library comes before torch, and the ranks that are forked have it. torch's own may lie in
memory beside it, unused. Tried with torch 2.10 and CuPy 14 and the NCCL wheels 2.27.5 and 2.30.7.
"""

import ctypes
import os
import sys
from multiprocessing.connection import Connection

from collectives._sweep.messages import Failed
from verifyscope.errors import reason_of


def main() -> None:
    """Load the library, then do what the fork server does."""
    ctypes.CDLL(sys.argv[2], mode=os.RTLD_NOW | os.RTLD_GLOBAL)
    try:
        from collectives._sweep import fork_server
    except ImportError as error:  # a symbol that this NCCL lacks
        Connection(int(sys.argv[1])).send(Failed(kind="error", reason=reason_of(error)))
        return
    fork_server.main()


if __name__ == "__main__":
    main()
    os._exit(0)  # taking torch down in order takes seconds, and nothing here needs it
