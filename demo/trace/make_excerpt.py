"""Makes conversation_excerpt.jsonl from the published conversation trace.

    python make_excerpt.py conversation_trace.jsonl [REQUESTS] [LONGEST]

Takes the first REQUESTS requests (1,000) whose prompt has at most LONGEST
blocks (32), in the order of the trace and otherwise unchanged. Longer prompts
are left out so that a replay with real bytes fits an ordinary machine.
"""

import json
import sys
from pathlib import Path


def main():
    source = Path(sys.argv[1])
    wanted = int(sys.argv[2]) if len(sys.argv) > 2 else 1_000
    longest = int(sys.argv[3]) if len(sys.argv) > 3 else 32
    taken = []
    with source.open() as lines:
        for line in lines:
            if len(json.loads(line)["hash_ids"]) <= longest:
                taken.append(line)
            if len(taken) == wanted:
                break
    Path(__file__).with_name("conversation_excerpt.jsonl").write_text("".join(taken))


if __name__ == "__main__":
    main()
