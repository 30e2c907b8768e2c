"""`python -m benchmarks.report_page`: `dpfl report` of three seeds of configs/drift.yaml, for docs/report.md.

Writes docs/pictures/report-*.png and the page's table. Takes about a minute, and needs a Chromium.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from playwright.sync_api import sync_playwright
from typer.testing import CliRunner

from benchmarks.pages import ROOT, put
from dpfl_plugin.cli.main import app

PICTURES: Final = ROOT / "docs" / "pictures"
SEEDS: Final = 3
SIZES: Final = {"report-page.png": (1280, 1400), "report-phone.png": (390, 1400)}


def command(*arguments: str) -> None:
    answer = CliRunner().invoke(app, list(arguments))
    if answer.exit_code not in (0, 3):
        raise SystemExit(f"dpfl {' '.join(arguments)}: {answer.output}{answer.exception}")


def photograph(page: Path) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("there is no chromium")
    with sync_playwright() as playwright:
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=chromium, args=options)
        for name, (width, height) in SIZES.items():
            opened = browser.new_page(viewport={"width": width, "height": height})
            opened.goto(page.as_uri())
            opened.wait_for_selector(".curves .main-svg")
            opened.screenshot(path=PICTURES / name)
        browser.close()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        runs, out = Path(folder) / "runs", Path(folder) / "report"
        for seed in range(SEEDS):
            command("run", str(ROOT / "configs" / "drift.yaml"), "--set", f"seed={seed}", "--out", str(runs))
        command("report", str(runs), "--out", str(out))
        put("docs/report.md", "table", (out / "tables" / "summary.md").read_text().strip())
        shutil.copy(out / "plots" / "test_accuracy-rounds.png", PICTURES / "report-plot.png")
        photograph(out / "index.html")


if __name__ == "__main__":
    main()
