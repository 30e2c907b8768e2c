"""Whether a finished result is that of the code that there is now."""

from __future__ import annotations

from dpfl_plugin.config.schema import Config
from dpfl_plugin.errors import ConfigError
from dpfl_plugin.runs import environment
from dpfl_plugin.runs.folder import RunFolder, read_object
from dpfl_plugin.runs.named_files import changed, file_digests


class OtherCodeError(ConfigError):
    """A result was made with other code than there is now; the message names what changed."""


def check_shown(folder: RunFolder, config: Config) -> list[str]:
    """Check that a finished run's result is that of the files that its configuration names; other changes, in words.

    Raises:
        OtherCodeError: such a file is another one by now.
    """
    made_by = (read_object(folder.result) or {}).get("code") or {}
    others = changed(file_digests(config), made_by)
    if others:
        raise OtherCodeError(
            f"{folder.path} holds the result of this configuration made with other code: {', '.join(others)} has "
            "changed since. Use another out for the new code, or put the old one back to see its result."
        )
    then, now = read_object(folder.environment) or {}, environment.describe()
    changes = [
        f"{name} {old} -> {now['packages'].get(name)}"
        for name, old in (then.get("packages") or {}).items()
        if old != now["packages"].get(name)
    ]
    if then.get("package_sha256", now["package_sha256"]) != now["package_sha256"]:
        changes.insert(0, "dpfl_plugin's own code")
    if not changes:
        return []
    return [f"changed since this result was made: {', '.join(changes)}. To make it again, use another out folder"]
