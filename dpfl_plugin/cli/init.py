"""`dpfl init`: what was written, and what comes next."""

from __future__ import annotations

import shlex
from pathlib import Path

from dpfl_plugin.api.projects import CONFIG, GITIGNORE, KEPT, Project


def show(project: Project, *, schema: bool) -> None:
    """Print it; ``schema`` says whether one was drafted."""
    folder = project.folder
    print(f"{folder}:")
    for path in project.files:
        print(f"  {path}")
    for line in project.told:
        print(line)
    if project.unignored:
        print(KEPT.format(path=folder / GITIGNORE))
        print("".join(f"  {line}\n" for line in project.unignored), end="")
    inside = "" if folder.resolve() == Path.cwd() else f"  cd {shlex.quote(str(folder))}\n"
    check = f"  dpfl check {CONFIG}       # what is wrong with the records, by the schema\n"
    account = f"  dpfl account {CONFIG}     # epsilon, before anything is trained\n"
    print(f"\nNext:\n\n{inside}{check if schema else ''}{account}  dpfl run {CONFIG}")
