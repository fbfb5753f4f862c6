"""A pool of real processes: for the demo, the benchmarks, the engines' scenarios and the tests.

`packaging/environment.sh` puts the folder above on the path of the virtual environment that it makes. Elsewhere
PYTHONPATH has to name it.
"""

from pool.installation import Installation, binary
from pool.master import Master, remove_witnesses
from pool.node import Node
from pool.pool import Pool
from pool.ports import HOST, free_port
from pool.program import Program
from pool.service_manager import KeptNode, ServiceManager
from pool.waiting import PoolError, wait_for, wait_stopped

__all__ = [
    "HOST",
    "Installation",
    "KeptNode",
    "Master",
    "Node",
    "Pool",
    "PoolError",
    "Program",
    "ServiceManager",
    "binary",
    "free_port",
    "remove_witnesses",
    "wait_for",
    "wait_stopped",
]
