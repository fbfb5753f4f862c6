"""NIXL's UCX backend under measurement, driven by JSON lines as the engine is; only posting and waiting are timed.

Each request is prepared before, as NIXL wants it: what is timed is the posting of one and the asking until it is done.
"""

import base64

from engine_worker import EngineWorker
from worker import serve


class NixlWorker(EngineWorker):
    def setup(self, size, host="127.0.0.1"):
        """An agent that lends `size` bytes, touched; what others need to reach it."""
        from nixl_cu12._api import nixl_agent, nixl_agent_config

        self.engine = nixl_agent(f"agent-{id(self)}", nixl_agent_config(backends=["UCX"]))
        self.touch(size)
        self.engine.register_memory([(self.memory.ctypes.data, size, 0, "")], mem_type="DRAM")
        told = base64.b64encode(self.engine.get_agent_metadata()).decode()
        return {"name": told, "address": self.memory.ctypes.data}

    def meet(self, name, address):
        self.peer, self.remote = self.engine.add_remote_agent(base64.b64decode(name)), address
        first, good, _ = self.moving("write", 0, 1, self.memory.nbytes, 1)
        if not good(first(0)):
            raise RuntimeError("the first transfer failed")
        return {}

    def moving(self, word, thread, threads, size, batch):
        span = size * batch
        slots = max(1, self.memory.nbytes // span // threads)
        here, there = (base + thread * slots * span for base in (self.memory.ctypes.data, self.remote))
        agent, peer = self.engine, self.peer

        def prepared(slot):
            local, remote = (
                agent.get_xfer_descs([(base + slot * span + n * size, size, 0) for n in range(batch)], mem_type="DRAM")
                for base in (here, there)
            )
            return agent.initialize_xfer(word.upper(), local, remote, peer)

        handles, post, state = [prepared(slot) for slot in range(slots)], agent.transfer, agent.check_xfer_state

        def one(i):
            handle = handles[i % slots]
            said = post(handle)
            while said == "PROC":
                said = state(handle)
            return said

        return one, lambda said: said == "DONE", lambda n: 0


if __name__ == "__main__":
    serve(NixlWorker())
