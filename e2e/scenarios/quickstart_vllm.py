"""The commands of docs/quickstart-vllm.md."""

import json

from document import document
from rig import until


def run(rig):
    with document("quickstart-vllm.md", rig) as page:
        page.start_pool()
        page.serve("vllm", 8000)
        computed = tokens(page.run("ask"))
        yield "the first vLLM finds nothing in the pool", hits(page.run("hits")) == 0
        until("the blocks are stored", page.keys)
        page.end("vllm")
        page.serve("vllm", 8000)
        loaded = tokens(page.run("ask"))
        found = hits(page.run("hits"))
        yield f"started again, it loads the prompt from the pool ({found} tokens)", found > 1_000
        yield "and answers the same", loaded == computed
        until("the reset succeeds", lambda: json.loads(page.run("reset"))["success"])
        yield "the reset empties the pool", page.keys() == 0
        page.end("vllm")
        page.serve("prefill", 8100)
        page.serve("decode", 8200)
        answer = tokens(page.run("ask-both"))
        found = hits(page.run("hits-of-decode"))
        yield f"decode loads what prefill computed ({found} tokens)", found > 1_000
        yield "and answers the same", answer == computed
        page.end("prefill")
        page.end("decode")
        page.serve("prefill-p2p", 8100)
        page.serve("decode-p2p", 8200)
        answer = tokens(page.run("ask-p2p"))
        found = hits(page.run("hits-of-decode"))
        yield f"without a store, decode gets the prompt from prefill ({found} tokens)", found > 1_000
        yield "and answers the same", answer == computed
        yield f"every command of the page was run {page.unused()}", not page.unused()


def tokens(answer):
    """What was generated. The text will do: all is one server's output for one prompt, decoded in one way."""
    return json.loads(answer)["choices"][0]["text"]


def hits(lines):
    return sum(int(float(line.rsplit(" ", 1)[1])) for line in lines.splitlines())
