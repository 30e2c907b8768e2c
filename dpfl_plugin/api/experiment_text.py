"""What an experiment is, in words: its keys as a file has them, those alone that are not what they are by default."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dpfl_plugin.config.load import Variant
from dpfl_plugin.config.yaml_text import flow


def keys_text(variants: Sequence[Variant], records: object | None) -> str:
    """A line for each key; of several variants those that all have alike, then a line for each variant.

    Args:
        records: what is shown in place of `data`, where a program gave them; None: the keys.
    """
    found = {one.label or one.config.name: _keys(one) for one in variants}
    if records is not None:
        found = {label: {**keys, "data": records} for label, keys in found.items()}
    first = next(iter(found.values()))
    alike = {key: value for key, value in first.items() if all(keys.get(key) == value for keys in found.values())}
    lines = _lines(alike)
    for label, keys in found.items() if len(found) > 1 else ():
        lines.append(f"variant {label}: {', '.join(_lines({k: v for k, v in keys.items() if k not in alike}))}")
    return "\n".join(lines)


def _keys(one: Variant) -> dict[str, Any]:
    changed = one.config.model_dump(mode="json", exclude_defaults=True)
    whole = one.config.model_dump(mode="json", exclude_none=True)
    data = {"dataset": whole["data"]["dataset"], **changed.pop("data", {})}
    changed.pop("description", None)
    return {"name": whole["name"], "data": data, "model": whole["model"], **changed}


def _lines(keys: dict[str, Any]) -> list[str]:
    return [f"{key}: {_said(value)}" for key, value in keys.items()]


def _said(value: Any) -> str:
    if isinstance(value, dict) and set(value) == {"name"}:
        return str(value["name"])
    return flow(value) if isinstance(value, dict | list | str | int | float) else str(value)
