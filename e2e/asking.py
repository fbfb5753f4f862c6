"""Requests that go on while processes of the pool are killed and started again."""

import threading

from rig import until, without_master, without_node


class Asking(threading.Thread):
    """Asks for every text again and again until it is told to end; what came out differently, or not at all."""

    def __init__(self, server, expected):
        super().__init__(daemon=True)
        self.server, self.expected = server, expected
        self.ended = threading.Event()
        self.answers, self.wrong = 0, []

    def run(self):
        while not self.ended.is_set():
            for text, tokens in self.expected.items():
                try:
                    # Its own cache would answer otherwise.
                    self.server.forget()
                    answer = self.server.complete(text)
                except Exception as error:  # Whatever it is, it is no answer.
                    answer = repr(error)
                self.answers += 1
                if answer != tokens:
                    self.wrong.append(answer)

    def answered(self, count):
        """Waits for `count` more answers."""
        goal = self.answers + count
        until(f"{count} more answers", lambda: self.answers >= goal, timeout=180)

    def stop(self):
        self.ended.set()
        self.join(180)


def killed_meanwhile(pool, server, expected, rounds):
    """Kills the storage node and the master in turns while `server` is asked for the texts of `expected`."""
    asking = Asking(server, expected)
    asking.start()
    for _ in range(rounds):
        asking.answered(2)
        with without_node(pool):
            asking.answered(3)
        asking.answered(3)
        with without_master(pool):
            asking.answered(3)
    asking.answered(2)
    asking.stop()
    found = f"{len(asking.wrong)} other answers {asking.wrong[:2]}"
    yield f"each killed {rounds}x during {asking.answers} requests: {found}", not asking.wrong
