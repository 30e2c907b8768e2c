"""docs/python.md: its code, block after block, does what the page says."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "python.md"


def test_the_page_runs_from_top_to_bottom(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(compile(code, str(PAGE), "exec"), names)
    said = capsys.readouterr().out
    for part in ("epsilon 2.03002 at delta 2.5e-06", "# Privacy statement", "done after 10 rounds", "first", "mine"):
        assert part in said
    assert {"by_hospital", "from_datasets", "trained", "again"} <= set(names)
    assert len(list(tmp_path.glob("runs/*/run/*/result.json"))) == 2
    assert names["later"].labels in ([0], [1])
    assert len(names["results"]) == len(names["table"]) == 4
