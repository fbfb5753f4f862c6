"""Mooncake installs the same package and the same commands.

Two distributions that write ``site-packages/mooncake`` leave a mixture of
both, in either order of installation, and uninstalling one takes files of the
other with it. Every module of ours therefore calls :func:`refuse` first: the
reference's ``__init__.py`` may have replaced ours.
"""

import os

OURS = "mooncake-rs"
ALLOW = "MOONCAKE_ALLOW_CLASH"
_PREFIX = "mooncake-transfer-engine"
_INFO = (".dist-info", ".egg-info")


def installed_beside(folder: str) -> list[str]:
    """Names of Mooncake's distributions in ``folder``, sorted."""
    try:
        entries = os.listdir(folder)
    except OSError:
        return []
    found = set()
    for entry in entries:
        stem, kind = os.path.splitext(entry)
        name = stem.partition("-")[0].replace("_", "-").replace(".", "-").lower()
        if kind in _INFO and name.startswith(_PREFIX):
            found.add(name)
    return sorted(found)


def remedy(rivals: list[str]) -> str:
    """The command that leaves only ours installed."""
    # Ours has to be laid down again: removing Mooncake removes the files that both own.
    return f"pip uninstall -y {' '.join(rivals)} {OURS} && pip install {OURS}"


def refuse() -> None:
    """Raises ImportError when Mooncake is installed in the same folder."""
    folder = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    rivals = installed_beside(folder)
    if rivals and os.environ.get(ALLOW) != "1":
        raise ImportError(
            f"{', '.join(rivals)} and {OURS} are both installed in {folder}: each owns the package 'mooncake' and the "
            f"command 'mooncake_master', and their files are mixed now. Keep one of them. To keep {OURS}:\n"
            f"    {remedy(rivals)}\n"
            f"({ALLOW}=1 imports {OURS} all the same.)"
        )
