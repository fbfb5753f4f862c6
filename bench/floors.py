"""What the machine itself can do, measured beside the store: a copy, and one loopback stream."""

import os
import socket
import statistics
import time

import numpy as np


def memcpy_gbps(seconds=0.4, size=64 << 20):
    """One thread copying between two warm buffers of 64 MiB; median of the copies."""
    source, target = np.ones(size, dtype=np.uint8), np.ones(size, dtype=np.uint8)
    rates = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        begin = time.perf_counter()
        np.copyto(target, source)
        rates.append(size / 1e9 / (time.perf_counter() - begin))
    return statistics.median(rates)


def loopback_gbps(size, seconds=0.5):
    """One TCP stream between two processes: a forked sender, and a receiver into one buffer of `size`."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        child = os.fork()
        if child == 0:
            try:
                with socket.create_connection(listener.getsockname()) as stream:
                    data = bytes(size)
                    end = time.perf_counter() + seconds
                    while time.perf_counter() < end:
                        stream.sendall(data)
            finally:
                os._exit(0)
        stream, _ = listener.accept()
        buffer = memoryview(bytearray(size))
        received, begin = 0, time.perf_counter()
        with stream:
            while got := stream.recv_into(buffer):
                received += got
        spent = time.perf_counter() - begin
        os.waitpid(child, 0)
        return received / 1e9 / spent
