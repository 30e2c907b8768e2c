"""The page in a real headless Chromium without a network, at the width of a desk and of a phone."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dpfl_plugin.experiments.reports.page import page as render
from dpfl_plugin.experiments.reports.runs import AXES, scan
from tests.experiments.reports.folders import made, section
from tests.experiments.reports.test_page import HOSTILE

pytestmark = [pytest.mark.browser, pytest.mark.slow]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
PATIENCE = 300_000.0  # milliseconds, for a machine that is busy
SIZES = {"desk": (1280, 900), "phone": (390, 844)}
OPEN = ["scaffold", "fedavg"]
METRICS = ["test_accuracy", "train_loss"]
RUNS = re.compile("^Runs$")

CONTRAST = """
() => {
  const light = text => {
    const [r, g, b] = text.match(/[0-9.]+/g).map(Number).map(v => v / 255)
      .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const back = element => {
    for (; element; element = element.parentElement) {
      const colour = getComputedStyle(element).backgroundColor;
      if (!colour.endsWith(", 0)")) return colour;
    }
  };
  const found = [];
  for (const element of document.querySelectorAll("h1, h2, p, label, select, input, button, th, td, a, li, code")) {
    if (element.closest(".plot, .legend")) continue;
    const [a, b] = [light(getComputedStyle(element).color), light(back(element))];
    found.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), element.outerHTML.slice(0, 80)]);
  }
  return found.filter(pair => pair[0] < 4.5);
}
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright, of the extra dev")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium: apt install chromium, or the like")
    with api.sync_playwright() as playwright:
        # As root, Chromium runs without its sandbox or not at all.
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=options, timeout=PATIENCE)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of three private configurations, one of which is hostile, and one without noise."""
    folder = tmp_path_factory.mktemp("runs")
    for i, name in enumerate((*OPEN, HOSTILE)):
        for seed in range(3):
            status = "failed" if i == seed == 1 else "done"
            accuracies: list[float | None] = [0.3 + 0.05 * i + 0.01 * seed + 0.04 * t for t in range(10)]
            changes = {"algorithm.name": name, "name": HOSTILE}
            run = folder / f"{i}{seed}"
            options = {"accuracies": accuracies, "status": status, "reason": HOSTILE, "epsilon": 2.0004 - i // 2}
            measured(made(run, seed=seed, changes=changes, **options), i)
    made(folder / "open", changes={"privacy.noise_multiplier": 0}, accuracies=[0.95] * 10, epsilon=None)
    (made(folder / "damaged") / "result.json").write_text("{")
    return write(folder)


def measured(folder: Path, number: int) -> None:
    """Give a run's result measures of its final model."""
    result = json.loads((folder / "result.json").read_text())
    pooled = {"model": {"auc": 0.9 - 0.1 * number, "f1": None}, "baseline": {"auc": 0.5, "f1": None}}
    (folder / "result.json").write_text(json.dumps({**result, "measures": {"pooled": pooled}}))


def write(folder: Path) -> Path:
    text = render([section(folder, *METRICS)], problems=scan([folder])[1], made_by="dpfl")
    path = folder / "index.html"
    path.write_text(text, encoding="utf-8")
    return path


class Opened:
    """A page with all that went wrong on it, and everything that it asked for."""

    def __init__(self, browser: Any, file: Path, size: str, scheme: str = "light") -> None:
        width, height = SIZES[size]
        self.context = browser.new_context(
            viewport={"width": width, "height": height}, offline=True, color_scheme=scheme, has_touch=size == "phone"
        )
        self.context.set_default_timeout(PATIENCE)
        self.page = self.context.new_page()
        self.wrong: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.wrong.append(message.text))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.wrong.append(dialog.message), dialog.dismiss()))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.context.on("page", lambda page: self.wrong.append(f"opened {page.url}"))
        self.page.goto(file.as_uri())
        self.page.wait_for_selector(".curves .main-svg")

    def curves(self) -> list[str]:
        names: list[str] = self.page.evaluate("document.querySelector('.curves').data.map(t => t.name).filter(n => n)")
        return names

    def rows(self) -> list[str]:
        return [text.strip() for text in self.page.locator(".groups tbody tr:visible th").all_inner_texts()]


ON_BOTH = pytest.mark.parametrize("opened", SIZES, indirect=True)


@pytest.fixture
def opened(request: pytest.FixtureRequest, browser: Any, file: Path) -> Iterator[Opened]:
    found = Opened(browser, file, getattr(request, "param", "desk"))
    yield found
    assert found.asked == [file.as_uri()]
    assert not found.wrong
    found.context.close()


@ON_BOTH
def test_it_draws_and_fits(opened: Opened) -> None:
    page = opened.page
    assert len(opened.rows()) == 4
    assert page.locator(".curves .scatterlayer .trace").count() >= 4
    for summary in page.locator("summary").all():
        summary.click()
    width, inner = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert width <= inner
    measures = page.locator("[aria-label=Measures]").evaluate("table => [table.scrollWidth, table.clientWidth]")
    assert measures[0] <= measures[1]
    plot = page.locator(".curves .main-svg").first.bounding_box()
    assert plot["width"] > 0.85 * inner - 40 and plot["x"] >= 0 and plot["x"] + plot["width"] <= inner


def test_long_names_of_keys_fit_a_phone(browser: Any, tmp_path: Path) -> None:
    for i in range(2):
        made(tmp_path / str(i), changes={"data.the_longest_name_of_any_option_that_a_data_set_has_ever_had": i})
    found = Opened(browser, write(tmp_path), "phone")
    width, inner = found.page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert width <= inner
    found.context.close()


def test_measures_are_sorted_by_their_headings(opened: Opened) -> None:
    page = opened.page
    page.locator("summary", has_text="All measures").click()
    before = page.locator("[aria-label=Measures] tbody tr").all_inner_texts()
    page.locator("[aria-label=Measures] thead button", has_text="model").click()
    after = page.locator("[aria-label=Measures] tbody tr").all_inner_texts()
    assert len(before) == 2 * 3 and sorted(before) == sorted(after)
    shown = [float(text.split("\t")[2].split()[0]) for text in after if "AUC" in text]
    assert shown == sorted(shown, reverse=True)


def test_nothing_can_be_sent_from_it(opened: Opened) -> None:
    """No button uploads what is drawn, and no button, one after another, asks for anything or opens a page."""
    buttons = opened.page.locator(".modebar-btn")
    titles = [buttons.nth(i).get_attribute("data-title") for i in range(buttons.count())]
    assert len(titles) >= 2 * 4 and not [title for title in titles if re.search("share|cloud|edit|plotly", title, re.I)]
    for i in range(len(titles)):
        if not titles[i].startswith("Download"):  # which saves a picture here
            buttons.nth(i).click(force=True)
    assert opened.page.locator("[class*=cloud]").count() == 0
    policy = opened.page.locator("meta[http-equiv]").get_attribute("content")
    assert "default-src 'none'" in policy and "form-action 'none'" in policy
    assert "cloud.plotly.com" not in opened.page.content()


def test_result_against_epsilon_with_error_bars(opened: Opened) -> None:
    found = "document.querySelector('.tradeoff').data.map(t => [t.name, t.x, t.y, t.error_y.array])"
    points = {name: (x, y, error) for name, x, y, error in opened.page.evaluate(found)}
    assert len(points) == 3
    (x, y, error) = points["fedavg"]
    assert x == [2.0004] and y == [0.72] and error == [pytest.approx(0.12706, rel=1e-3)]
    assert opened.page.locator(".tradeoff .yerror").count() == 3
    assert "no noise" in opened.page.locator("figcaption.points").inner_text()


def test_bands_lie_below_all_curves(opened: Opened) -> None:
    fills = opened.page.evaluate("document.querySelector('.curves').data.map(t => !!t.fill)")
    assert True in fills and fills == sorted(fills, reverse=True)


@ON_BOTH
def test_a_phone_shows_the_columns_that_count(opened: Opened) -> None:
    heads, phone = opened.page.locator(".groups thead th:visible"), opened.page.viewport_size["width"] < 600
    few = [text.strip(" \u25b2\u25bc") for text in heads.all_inner_texts()]
    assert (few == ["configuration", "test accuracy", "epsilon, server"]) == phone
    if phone:
        opened.page.locator(".columns").check()
    assert "train loss" in [text.strip() for text in heads.all_inner_texts()]


def test_partial_failed_and_damaged_runs_are_seen(opened: Opened) -> None:
    page = opened.page
    assert any(name.endswith("seed 1: failed") for name in opened.curves())
    assert page.get_by_text("2 of 3 (1 failed)").is_visible()
    assert page.get_by_text("result.json is not JSON").is_visible()
    assert page.get_by_text("no guarantee", exact=True).first.is_visible()
    page.locator("summary", has_text=RUNS).click()
    assert page.locator(".runs td.partial").inner_text() == f"failed: {HOSTILE}"


def test_filters(opened: Opened) -> None:
    page = opened.page
    assert not page.locator(".filters form").is_visible(), "behind one button"
    page.locator("summary", has_text="Filter").click()
    page.select_option("select[data-key='algorithm.name']", "fedavg")
    assert len(opened.rows()) == 1 and opened.rows()[0].startswith("fedavg")
    assert all(name.startswith("fedavg") for name in opened.curves()) and opened.curves()
    page.locator("summary", has_text=RUNS).click()
    assert page.locator(".runs tbody tr:visible").count() == 3
    page.get_by_role("button", name="reset", exact=True).click()
    page.locator(".groups tbody tr:visible").nth(3).wait_for()
    page.fill("[name=search]", "guarantee")
    assert len(opened.rows()) == 1
    page.fill("[name=search]", "fedavg scaffold")
    assert opened.rows() == []


def test_sorting(opened: Opened) -> None:
    page = opened.page
    assert "no noise" in opened.rows()[0]
    heading = page.get_by_role("button", name="test accuracy").first
    heading.click()
    assert page.locator(".groups th[aria-sort=descending]").count() == 1 and "no noise" in opened.rows()[0]
    heading.click()
    assert opened.rows()[0].startswith("scaffold, noise") and "no noise" in opened.rows()[-1]


@ON_BOTH
def test_names_are_whole_and_switch_curves_off(opened: Opened) -> None:
    """Below the picture, where none is cut."""
    entries = opened.page.locator(".legend button")
    assert entries.count() == 4 and HOSTILE in entries.all_inner_texts()[2] + entries.all_inner_texts()[1]
    for entry in entries.all():
        box = entry.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= opened.page.viewport_size["width"]
    before = len(opened.curves())
    entries.nth(0).click()
    assert len(opened.curves()) == before - 1
    opened.page.locator(".legend button").nth(0).click()
    assert len(opened.curves()) == before


def test_nothing_is_drawn_beyond_the_measure(opened: Opened) -> None:
    low, high = opened.page.evaluate("document.querySelector('.tradeoff')._fullLayout.yaxis.range")
    assert 0 <= low < high <= 1


def test_any_metric_against_any_axis(opened: Opened) -> None:
    page = opened.page
    for metric, axis in itertools.product(METRICS, AXES):
        page.select_option("[name=metric]", metric)
        page.select_option("[name=axis]", axis)
        names = opened.curves()
        private = axis.startswith("epsilon")
        assert len(names) == (4 if private else 5)
        assert any("no noise" in name for name in names) != private
        assert page.locator(".curves .xtitle").text_content() == AXES[axis]
        assert page.locator(".curves .ytitle").text_content() == metric.replace("_", " ")
        assert ("no values on these axes" in page.locator(".drawn").first.inner_text()) == private


def test_every_run(opened: Opened) -> None:
    before = len(opened.curves())
    opened.page.locator("[name=singly]").check()
    assert len(opened.curves()) == before + 9


def test_values_at_a_point_are_shown(opened: Opened) -> None:
    opened.page.locator("summary", has_text="Filter").click()
    opened.page.select_option("select[data-key='algorithm.name']", "scaffold")
    opened.page.fill("[name=search]", "noise_multiplier")
    opened.page.locator(".curves").scroll_into_view_if_needed()
    box = opened.page.locator(".curves .nsewdrag").first.bounding_box()
    shown, until = "", time.monotonic() + PATIENCE / 1000
    while not ("scaffold" in shown and "±" in shown):
        assert time.monotonic() < until, shown
        for i in range(60):  # down a line through the fourth of ten rounds
            opened.page.mouse.move(box["x"] + box["width"] / 3, box["y"] + box["height"] * i / 60)
            opened.page.wait_for_timeout(60)
            if opened.page.locator(".curves .hoverlayer text").count():
                break
        shown = opened.page.locator(".curves .hoverlayer").text_content()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_contrast(browser: Any, file: Path, size: str, scheme: str) -> None:
    found = Opened(browser, file, size, scheme)
    found.page.locator("summary", has_text=RUNS).click()
    assert found.page.evaluate(CONTRAST) == []
    found.context.close()


def test_every_field_has_a_name(opened: Opened) -> None:
    nameless = "[...document.querySelectorAll('input, select')].filter(e => !e.labels.length).length"
    assert opened.page.evaluate(nameless) == 0


def test_a_hundred_runs(browser: Any, tmp_path: Path) -> None:
    for i in range(50):
        for seed in range(2):
            changes = {"algorithm.local_lr": float(i % 10), "privacy.clip_norm": float(i // 10)}
            made(tmp_path / f"{i}-{seed}", seed=seed, changes=changes, accuracies=[0.005 * i + 0.01 * seed] * 40)
    path = write(tmp_path)
    found = Opened(browser, path, "phone")
    assert len(found.rows()) == 50 and len(found.curves()) == 50
    bands = "document.querySelector('.curves').data.filter(t => t.fill).length"
    assert found.page.evaluate(bands) == 0
    found.page.locator("summary", has_text="Filter").click()
    found.page.select_option("select[data-key='algorithm.local_lr']", "3")
    assert len(found.rows()) == found.page.evaluate(bands) == 5
    assert found.page.evaluate("document.documentElement.scrollWidth") <= 390
    assert not found.wrong and found.asked == [path.as_uri()]
    found.context.close()
