"""The faults of the replay: a storage node, then the master, are killed and started again."""

import time
from dataclasses import dataclass

# How long the master may take to list the objects of the nodes that still live.
RETURN_LIMIT = 5.0


@dataclass
class Outcome:
    """What the faults found."""

    known_before: int = 0
    known_after: int = 0
    known_after_s: float = 0.0
    evicted_since: int = 0
    master_away_s: float = 0.0


class Faults:
    """Steps of the fault sequence; `step` is called often and never blocks for long."""

    def __init__(self, pool, engines, victim, say):
        self.pool = pool
        self.engines = engines
        self.victim = victim
        self.say = say
        self.outcome = Outcome()
        self._next = self._kill_node
        self._due = None
        self._keys = None
        self._listed = set()
        self._since = 0.0

    @property
    def finished(self):
        return self._next is None

    def start(self):
        if self._due is None:
            self._due = time.monotonic()

    def stored(self, keys):
        """These were written anew: that the master knows them says nothing about its restart."""
        if self._keys:
            self._keys.difference_update(keys)

    def step(self):
        if self._next is not None and self._due is not None and time.monotonic() >= self._due:
            self._next()

    def _then(self, step, seconds):
        self._next = step
        self._due = time.monotonic() + seconds

    def _kill_node(self):
        self.say(f"SIGKILL storage {self.victim.name} (pid {self.victim.pid})")
        self.victim.kill()
        self._since = time.monotonic()
        self._then(self._kill_master, 0.1)

    def _kill_master(self):
        # Only what the surviving node holds can survive: wait until the dead node's objects are out of the list.
        listed = self.pool.segments()
        if (listed is None or len(listed) >= len(self.pool.nodes)) and time.monotonic() < self._since + RETURN_LIMIT:
            return self._then(self._kill_master, 0.05)
        self.say(f"its objects are off the lists after {time.monotonic() - self._since:.1f} s")
        # Between the list and the kill no put may evict: the master that comes back could not tell.
        with self.engines.held():
            self._keys = self.pool.keys() or set()
            self.say(f"SIGKILL master (pid {self.pool.master.pid}), which knows {len(self._keys):,} objects")
            self.pool.master.kill()
        self._since = time.monotonic()
        return self._then(self._restart, 0.5)

    def _restart(self):
        self.pool.master.start()
        self.outcome.master_away_s = time.monotonic() - self._since
        self._since = time.monotonic()
        self.victim.launch()
        self.say(f"started the master and {self.victim.name} again")
        self._then(self._count, 0.0)

    def _count(self):
        listed = self.pool.keys()
        waited = time.monotonic() - self._since
        # Traffic goes on and evicts, so the most that was seen at once is the answer.
        if listed is not None and len(listed & self._keys) > len(self._listed & self._keys):
            self._listed = listed
            self.outcome.known_after_s = waited
            # Asked after the list, so that what the list lacks is counted.
            self.outcome.evicted_since = self.pool.metric("master_evicted_key_count")
        if waited < 2.0 and len(self._listed & self._keys) < len(self._keys):
            return self._then(self._count, 0.05)
        # Engines still have to report some of what they wrote anew.
        return self._then(self._conclude, 1.0)

    def _conclude(self):
        self.outcome.known_before = len(self._keys)
        self.outcome.known_after = len(self._listed & self._keys)
        self.say(
            f"of {self.outcome.known_before:,} objects that were not written anew the master lists"
            f" {self.outcome.known_after:,} {self.outcome.known_after_s:.1f} s after its start;"
            f" it has evicted {self.outcome.evicted_since:,} for new ones since"
        )
        self._next = None
