"""The commands of docs/quickstart-lmcache.md."""

from document import document
from rig import until

from scenarios.quickstart_vllm import hits, tokens


def run(rig):
    with document("quickstart-lmcache.md", rig) as page:
        page.start_pool()
        page.serve("vllm", 8000)
        computed = tokens(page.run("ask"))
        yield "the first vLLM finds nothing in the pool", hits(page.run("hits")) == 0
        until("the chunks are stored", page.keys)
        page.end("vllm")
        page.serve("vllm", 8000)
        loaded = tokens(page.run("ask"))
        found = hits(page.run("hits"))
        yield f"started again, it loads the prompt from the pool ({found} tokens)", found > 2_000
        yield "and answers the same", loaded == computed
        yield f"every command of the page was run {page.unused()}", not page.unused()
