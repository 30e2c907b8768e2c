"""The page: self-contained, and no text from a run means more than itself."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html.parser
import json
from pathlib import Path
from typing import Any

import pytest

from dpfl_plugin.experiments.reports import page as module
from dpfl_plugin.experiments.reports.runs import scan
from tests.experiments.reports.folders import made, section

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'"


class Reader(html.parser.HTMLParser):
    """Elements with their attributes, and the data that the page draws."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.data: Any = None
        self._data = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._data = tag == "script" and dict(attrs).get("id") == "data"

    def handle_data(self, data: str) -> None:
        if self._data:
            self.data, self._data = json.loads(data), False


def written(folder: Path, **options: Any) -> Reader:
    made_by = section(folder, "test_accuracy", "train_loss")
    return Reader(module.page([made_by], problems=scan([folder])[1], made_by="dpfl", **options))


def test_nothing_is_loaded_from_elsewhere(tmp_path: Path) -> None:
    made(tmp_path / "a")
    found = written(tmp_path)
    for tag, attributes in found.elements:
        assert tag not in ("link", "iframe", "object", "embed", "img", "base")
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith("#")
    (policy,) = [a["content"] for _, a in found.elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None and policy.startswith("default-src 'none'") and "http" not in policy


def test_no_address_to_upload_to_is_left_in_the_library() -> None:
    """Its button "Share chart" sends what is drawn there. Another version may name another: look at it first."""
    text = module._library()
    found = module._plotly(text)
    assert module.UPLOAD in text and "cloud.plotly.com" not in found and "newchart" not in found
    assert gzip.decompress(base64.b64decode(module._packed(found))).decode() == found
    assert len(module._packed(found)) < 0.6e6


def test_points_are_results_at_the_epsilon_of_the_whole_run(tmp_path: Path) -> None:
    for i, (noise, epsilon) in enumerate(((4.0, 2.0), (8.0, 1.0), (8.01, 0.996), (0.0, None))):
        for seed in (0, 1):
            changes = {"privacy.noise_multiplier": noise}
            made(tmp_path / f"{i}{seed}", seed=seed, changes=changes, accuracies=[0.2 + 0.2 * seed], epsilon=epsilon)
    (drawn,) = written(tmp_path).data["sections"]
    groups, half = drawn["groups"], 1.2706  # 12.706 times the standard deviation over the root of 2
    assert drawn["points"] == "test_accuracy" and drawn["range"]["test_accuracy"] == [0, 1]
    assert {group["label"]: group["point"] for group in groups} == {
        "noise_multiplier=4": [2.0, 0.3, half],
        "noise_multiplier=8": [1.0, 0.3, half],
        "noise_multiplier=8.01": [1.0, 0.3, half],  # so near that it is drawn at the same place
        "no noise": None,
    }
    assert {group["series"] for group in groups} == {"scaffold"}


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    made(tmp_path / "a")
    harmless = written(tmp_path)
    changes = {"name": HOSTILE, "algorithm.name": HOSTILE}
    made(tmp_path / "b", changes=changes)
    made(tmp_path / "c", changes=changes, seed=1, status="failed", reason=HOSTILE)
    (made(tmp_path / "d", seed=2) / "config.yaml").write_text(f"'{HOSTILE[:-1]}': [")
    (tmp_path / "d").rename(tmp_path / "<b>d")
    found = written(tmp_path)
    scripts = [tag for tag, _ in found.elements if tag == "script"]
    assert len(scripts) == len([tag for tag, _ in harmless.elements if tag == "script"]) == 3
    assert not {"img", "b"} & {tag for tag, _ in found.elements}
    assert not any(key.startswith("on") for _, attributes in found.elements for key in attributes)
    assert HOSTILE in [group["label"] for group in found.data["sections"][0]["groups"]]


def test_one_run_is_not_called_runs(tmp_path: Path) -> None:
    made(tmp_path / "one")
    text = module.page([section(tmp_path)], problems=[], made_by="dpfl")
    assert "<h1>Report of 1 run</h1>" in text and 'class="filters"' not in text


def test_data_of_a_group(tmp_path: Path) -> None:
    made(tmp_path / "a", seed=0, accuracies=[0.1, 0.3])
    made(tmp_path / "b", seed=1, accuracies=[0.3, 0.5])
    made(tmp_path / "c", seed=2, accuracies=[None], status="failed", epsilon=None)
    (group,) = written(tmp_path).data["sections"][0]["groups"]
    assert group["n"] == 2
    assert group["bands"]["rounds"]["test_accuracy"] == {"x": [1, 2], "mean": [0.2, 0.4], "half": [1.2706, 1.2706]}
    assert group["bands"]["bytes"]["test_accuracy"]["x"] == [40, 80]
    assert [run["status"] for run in group["runs"]] == ["done", "done", "failed"]
    assert group["runs"][2]["curve"]["epsilon"] == [None]


def test_many_runs_leave_single_curves_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_CURVES", 3)
    for seed in range(3):
        made(tmp_path / str(seed), seed=seed)
    made(tmp_path / "p", seed=9, status="interrupted")
    (group,) = written(tmp_path).data["sections"][0]["groups"]
    assert [run["status"] for run in group["runs"]] == ["interrupted"]
    assert group["bands"]["rounds"]


def test_filters_are_the_keys_that_tell_configurations_apart(tmp_path: Path) -> None:
    for i, (lr, noise) in enumerate([(10.0, 4.0), (9.0, 4.0), (None, 4.0), (9.0, None)]):
        made(tmp_path / str(i), changes={"algorithm.local_lr": lr, "privacy.noise_multiplier": noise})
    expected = {"privacy.noise_multiplier": ["4", "solved"], "algorithm.local_lr": ["9", "10", "null"]}
    assert module._filters(section(tmp_path)) == expected
    filters = [a["data-key"] for tag, a in written(tmp_path).elements if tag == "select" and "data-key" in a]
    assert filters == list(expected)


def test_the_library_is_the_one_that_was_published() -> None:
    """As its authors packed it for npm (plotly.js-basic-dist-min 4.1.1); what is cut from it is cut in the page."""
    text = module._library()
    sha256 = "99784e3abfb07b142a15e521a439e6d9addceadb3f79553fd24c72774f0649ba"
    assert hashlib.sha256(text.encode()).hexdigest() == sha256
    assert "plotly.js (basic - minified) v4.1.1" in text[:100] and "MIT license" in text[:200]
