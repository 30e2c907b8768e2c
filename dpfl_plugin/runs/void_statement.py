"""A statement that is behind its ledger states too little: while a run goes on, the one of an earlier session is void.

`privacy.md`, `ledger.json` and `result.json` are written when a session ends. One that goes on with the run charges
more, and may be killed. So before it opens the ledger, what the last one stated is replaced by a word that it no
longer holds; what the ledger proves is said by `dpfl account FOLDER`, at any time.
"""

from __future__ import annotations

import json
from typing import Any, Final

from dpfl_plugin.runs.folder import RunFolder, to_json

VOID: Final = "void: the run went on after this was stated, and released more"


def void_statement(files: RunFolder) -> None:
    """Let nothing in a run's folder state an epsilon but its ledger; nothing to do where nothing was stated.

    `ledger.json` keeps what shows whether the ledger's end is missing: its length and its last checksum, as they were.
    """
    files.result.unlink(missing_ok=True)
    if not (files.statement.exists() or files.privacy.exists()):
        return
    said = _read(files)
    known = {key: said[key] for key in ("schema", "num_charges", "counted", "head") if key in said}
    files.write(files.privacy, _IN_WORDS)
    files.write(files.statement, to_json({**known, "guarantee": VOID}))


def _read(files: RunFolder) -> dict[str, Any]:
    try:
        said = json.loads(files.statement.read_text())
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}


_IN_WORDS: Final = """# Privacy statement: void

This run was continued after the statement that stood here was written, and has released more since or is about to: the
old numbers no longer hold. `dpfl account FOLDER`, with this file's folder, reads the ledger and prints what it proves
now. A new statement is written when the session ends; if it was killed, `dpfl run CONFIG --resume` continues the run.
"""
