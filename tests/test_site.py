"""The site of the documentation builds without a warning, leads nowhere else, and loads nothing from outside."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, str]:
    """The pages' HTML, as `launchers/docs` builds them."""
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("there is no mkdocs: install it with launchers/env docs")
    site = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", site],
        cwd=ROOT,
        env={**os.environ, "DISABLE_MKDOCS_2_WARNING": "true", "NO_MKDOCS_2_WARNING": "true"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stdout + done.stderr
    return {page: page.read_text(encoding="utf-8") for page in site.rglob("*.html") if page.name != "404.html"}


def test_links_lead_somewhere(pages: dict[Path, str]) -> None:
    """To files of the checkout, too, which the site copies."""
    dead = []
    for page, text in pages.items():
        for target in re.findall(r'<(?:a|img)\b[^>]*? (?:href|src)="(?![a-z]+:|#)([^"#]+)', text):
            if not (page.parent / target).exists():
                dead.append(f"{page.name}: {target}")
    assert not dead


def test_nothing_is_loaded_from_outside(pages: dict[Path, str]) -> None:
    loaded = [
        f"{page.name}: {tag}"
        for page, text in pages.items()
        for tag in re.findall(r'<(?:script|link|img|iframe|source)\b[^>]*?(?:src|href)="(?:https?:)?//[^>]*>', text)
    ]
    assert not loaded


def test_markdown_is_read_as_on_github(pages: dict[Path, str]) -> None:
    """Here a fence in a list needs four spaces, and a list a blank line before it."""
    raw = []
    for page, text in pages.items():
        prose = re.sub(r"<(pre|code|script|style)\b.*?</\1>", "", text, flags=re.DOTALL)
        raw += [f"{page.name}: {found}" for found in re.findall(r"```.*|<p>[^<]*\n(?:[*-]|1\.) .*", prose)]
    assert not raw


def test_it_has_the_public_interfaces(pages: dict[Path, str]) -> None:
    (reference,) = (text for page, text in pages.items() if page.match("reference/algorithms.html"))
    assert 'id="dpfl_plugin.algorithms.base.Algorithm.local_update"' in reference
