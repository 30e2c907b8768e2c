"""What the site adds to docs/: pages of the project's root, and the files outside docs/ that pages link to.

On GitHub a page links to a file by its path; on the site that file would be missing. So a Markdown file of the root
is a page, every other file that is linked to is copied (with `.txt`, so that browsers show it), and a folder is named
without a link.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root, and what pages link to."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    linked = {
        path
        for file in files.documentation_pages()
        for *_, target, _ in LINK.findall(file.content_string)
        if (path := _outside(file.src_uri, target)) and path.is_file() and path.name not in PAGES
    }
    for path in sorted(linked):
        files.append(File.generated(config, _copy(path), content=path.read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links lead to where the site has what they name."""
    uri = page.file.src_uri

    def link(match: re.Match[str]) -> str:
        image, text, target, anchor = match.group(1), match.group(2), match.group(3), match.group(4) or ""
        path = _resolved(uri, target)
        if not path.is_relative_to(ROOT) or not path.exists():
            return match.group(0)  # mkdocs says that it leads nowhere
        if path.is_dir():
            return text
        name = path.relative_to(DOCS if path.is_relative_to(DOCS) else ROOT).as_posix()
        if not path.is_relative_to(DOCS):
            name = PAGES.get(name) or _copy(path)
        return f"{image}[{text}]({posixpath.relpath(name, posixpath.dirname(uri) or '.')}{anchor})"

    return LINK.sub(link, markdown)


def _resolved(uri: str, target: str) -> Path:
    """What a link of a page leads to in the checkout."""
    folder = ROOT if uri in PAGES.values() else (DOCS / uri).parent
    return Path(os.path.normpath(folder / target))


def _outside(uri: str, target: str) -> Path | None:
    path = _resolved(uri, target)
    return path if path.is_relative_to(ROOT) and not path.is_relative_to(DOCS) else None


def _copy(path: Path) -> str:
    return f"source/{path.relative_to(ROOT).as_posix()}.txt"
