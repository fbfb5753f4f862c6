"""The loop of a client here that is told what to do by lines on stdin, each a JSON list of a call and its arguments."""

import json
import os
import sys

import recorder


def obey(make):
    """Makes the client, says "ready", and answers each line on stdout with what the method of that name returns."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # What libraries print belongs into the log.
    recorder.install()
    client = make()
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(getattr(client, name)(*arguments)), file=answers, flush=True)
    os._exit(0)
