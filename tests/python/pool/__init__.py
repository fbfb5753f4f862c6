"""A pool of real processes for tests."""

from pool.cluster import Cluster, Master, Node
from pool.daemon import Daemon, binary, free_port, wait_for
from pool.peer import Peer, PeerGone

__all__ = ["Cluster", "Daemon", "Master", "Node", "Peer", "PeerGone", "binary", "free_port", "wait_for"]
