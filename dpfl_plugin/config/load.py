"""YAML to a checked `Config`; every error names file, key, value and what is allowed."""

from __future__ import annotations

import copy
import hashlib
import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any, Final, get_args, get_origin

import pydantic
import yaml

from dpfl_plugin import registry
from dpfl_plugin.config.schema import Config, SweepConfig
from dpfl_plugin.config.tune_keys import TuneConfig
from dpfl_plugin.config.yaml_text import dump, parse, what_is_wrong
from dpfl_plugin.errors import ConfigError, Error, nearest, require, said_of
from dpfl_plugin.registry import describe
from dpfl_plugin.synonyms import meant


@dataclass(frozen=True, slots=True)
class Variant:
    """One run of a file: its label (None if the file has one run only) and configuration."""

    label: str | None
    config: Config


def in_file(error: Error, path: Path, variant: Variant) -> Error:
    """An error of the same type, which names the file and the variant that it is of."""
    return said_of(error, f"{path}{f' (variant {variant.label})' if variant.label else ''}: ")


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file.

    Raises:
        ConfigError: the file is missing, is not YAML, gives a key twice, or is not a mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        own = path / "config.yaml"
        run = f" It is the folder of a run, whose configuration is {own}." if own.is_file() else ""
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}.{run}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text (byte {error.start}).") from error
    return mapping_in(text, path)


def mapping_in(text: str, path: Path) -> dict[str, Any]:
    """The mapping that the text of a YAML file is.

    Raises:
        ConfigError: it is no YAML, gives a key twice, or is no mapping.
    """
    try:
        values = parse(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"{path}{where}: {what_is_wrong(error, text)}.") from error
    if not isinstance(values, dict):
        raise ConfigError(
            f"{path}: holds no mapping of keys to values: is it a configuration (YAML, as dpfl init writes one)?"
        )
    return values


NO_RUN: Final = "no_run"
"""In environment.json: the configuration beside it was given by a program, and is no run's."""


def base_of(path: Path) -> Path:
    """The folder from which relative paths in a configuration start: the file's own.

    The config.yaml of a run's folder says what the user's file said, and so has the same id on every machine; its paths
    start where that file was, which environment.json tells, as long as that folder is there.
    """
    base = _begun_at(path)
    return base if base is not None and base.is_dir() else path.parent


def out_of(path: Path) -> Path | None:
    """The ``out`` of the run whose config.yaml this is, wherever that is by now; None of any other file.

    What the file itself says is relative to where the run was begun: with it a run would begin anew elsewhere.
    """
    if _begun_at(path) is None or NO_RUN in _environment(path):
        return None
    whole = path if len(path.parts) > 3 else path.absolute()
    return whole.parents[2] if len(whole.parts) > 3 else None


def _begun_at(path: Path) -> Path | None:
    """Where the file was that a run was begun with, if this is the config.yaml of its folder; else None."""
    base = _environment(path).get("base") if path.name == "config.yaml" else None
    return Path(base) if isinstance(base, str) else None


def _environment(path: Path) -> Mapping[str, Any]:
    """What `environment.json` beside a file says; {} without one."""
    try:
        found = json.loads((path.parent / "environment.json").read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


@dataclass(frozen=True, slots=True)
class Plan:
    """The runs of a file, and which of them to compare: pairs of labels."""

    variants: tuple[Variant, ...]
    compare: tuple[tuple[str, str], ...] = ()


def load(
    path: Path,
    settings: Iterable[str] = (),
    *,
    variant: str | None = None,
    budget: Mapping[str, Any] | None = None,
) -> Plan:
    """The runs that a file describes, with ``settings`` ("key.path=value") applied to each.

    ``variants: {label: {...}}`` in a file gives one run for each label: the rest of the file, changed by it. Its keys
    are mappings or paths, as those of settings.
    ``compare: [[label, label], ...]`` names pairs of them whose difference is to be stated. Settings may change both;
    ``variants=null`` leaves the rest of the file. The config.yaml of a run's folder describes the run of that folder.

    Args:
        variant: the label of the one run that is asked for.
        budget: keys of ``privacy`` that every run gets whose noise_multiplier is not 0.

    Raises:
        ConfigError: anything in it is wrong.
    """
    values, change = read_yaml(path), joined(parse_setting(setting) for setting in settings)
    if "out" not in change and (out := out_of(path)) is not None:
        values["out"] = str(out)
    without_variants = "variants" in change and change["variants"] is None
    values = merged(values, {key: change.pop(key) for key in OF_FILES if key in change})
    sweep, tune, variants, compare = (values.pop(key, None) for key in OF_FILES)
    if sweep is not None:
        raise ConfigError(f"{path}: sweep: describes many runs. Use dpfl sweep {path}, or sweep=null for one run.")
    if tune is not None:
        raise ConfigError(
            f"{path}: tune: describes candidates. Use dpfl tune {path}, dpfl plan {path} for what that costs, or "
            "tune=null for one run."
        )
    if variants is None:
        if compare and not without_variants:
            raise ConfigError(f"{path}: compare names variants, but the file has none.")
        if variant is not None:
            raise ConfigError(f"variant {variant!r}: {path} has no variants. Leave it out.")
        return Plan((Variant(None, _check(_budgeted(merged(values, change), budget), str(path))),))
    if not isinstance(variants, dict) or not variants or not all(isinstance(v, dict) for v in variants.values()):
        raise ConfigError(f"{path}: variants must map labels to changes of this file, e.g. {{fedavg: {{seed: 1}}}}.")
    labels = [str(label) for label in variants]  # distinct: the loader compares keys as they are written
    if variant is not None:
        require(variant in labels, "variant", variant, f"be one of {', '.join(labels)}")
    configs = [
        Variant(label, _check(_budgeted(merged(values, nested(own), change), budget), f"{path} (variant {label})"))
        for label, own in zip(labels, variants.values(), strict=True)
        if variant in (None, label)
    ]
    return Plan(tuple(configs), compared_pairs(compare or [], labels, path))


OF_FILES: Final = ("sweep", "tune", "variants", "compare")
"""Keys of a file that are no keys of a run."""


def _budgeted(values: dict[str, Any], budget: Mapping[str, Any] | None) -> dict[str, Any]:
    privacy = values.get("privacy")
    if not budget or not isinstance(privacy, dict) or privacy.get("noise_multiplier") == 0:
        return values
    return {**values, "privacy": {**privacy, **budget}}


def configure(values: Mapping[str, Any], *changes: Mapping[str, Any], source: str) -> Config:
    """The configuration ``values``, changed by each of ``changes`` in turn as a variant changes its file.

    Raises:
        ConfigError: anything in it is wrong; the message begins with ``source``.
    """
    return _check(merged(values, *changes), source)


def compared_pairs(compare: Any, labels: list[str], path: Path) -> tuple[tuple[str, str], ...]:
    """Pairs of variants as ``compare`` names them.

    Raises:
        ConfigError: they are no such pairs.
    """
    pairs = compare if isinstance(compare, list) else [compare]
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2 or not {str(label) for label in pair} <= set(labels):
            raise ConfigError(f"{path}: compare={pair!r} must be a pair of two of the variants: {', '.join(labels)}.")
    return tuple((str(first), str(second)) for first, second in pairs)


def parse_setting(setting: str, option: str = "--set") -> dict[str, Any]:
    """ "a.b=1" as {"a": {"b": 1}}; the value is YAML. ``option`` is what the message names."""
    key, equals, value = setting.partition("=")
    if not equals or not key or not all(key.split(".")):
        raise ConfigError(f"{option} {setting!r} is not of the form key=value, e.g. {option} privacy.clip_norm=0.5.")
    try:
        result: Any = parse(value)
    except yaml.YAMLError as error:
        shown = setting if len(setting) <= 200 else f"{setting[:100]}... ({len(setting)} characters)"
        what = getattr(error, "problem", None) or error
        raise ConfigError(f"{option} {shown!r}: the value is not YAML: {what}.") from error
    return nested({key: result})


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """{"a.b": 1} as {"a": {"b": 1}}."""
    result = []
    for key, value in values.items():
        for part in reversed(str(key).split(".")):
            value = {part: value}
        result.append(value)
    return joined(result)


GROUPS: Final = {
    ("algorithm",): "algorithms",
    ("model",): "models",
    ("data", "dataset"): "datasets",
    ("data", "partition"): "partitioners",
    ("privacy", "mechanism"): "mechanisms",
    ("privacy", "clip"): "clippings",
    ("privacy", "schedule"): "schedules",
    ("privacy", "accountant"): "accountants",
}


def merged(base: Mapping[str, Any], *changes: Mapping[str, Any], path: tuple[str, ...] = ()) -> dict[str, Any]:
    """``base`` with mappings merged key by key; a block that names another plugin keeps what that one knows.

    null removes a block, a list, a mapping, and what makes more than one run of a file.
    """
    result = copy.deepcopy(dict(base))
    for change in changes:
        for key, value in change.items():
            old = result.get(key)
            here = (*path, str(key))
            group = GROUPS.get(here[2:] if here[0] == "variants" else here)
            if value is None and (isinstance(old, dict | list) or (not path and key in OF_FILES)):
                result.pop(key, None)
                continue
            if isinstance(old, str) and isinstance(value, dict) and group:
                old = {"name": old}  # `model: mlp` with a later model.hidden=[50]
            if isinstance(old, dict) and isinstance(value, dict):
                if group and ("name" in value or "module" in value):
                    old = _kept(old, value, group)
                result[key] = merged(old, value, path=here)
            else:
                result[key] = copy.deepcopy(value)
    return result


def flat(values: Mapping[str, Any], without: Mapping[str, Any] | None = None, prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one: `{"a": {"b": 1}}` is `{"a.b": 1}`; keys in ``without`` are left out."""
    result: dict[str, Any] = {}
    for key, value in values.items():
        left_out = (without or {}).get(key)
        if left_out is True:
            continue
        if isinstance(value, Mapping):
            result |= flat(value, dict.fromkeys(left_out, True) if left_out else None, f"{prefix}{key}.")
        else:
            result[f"{prefix}{key}"] = value
    return result


def joined(settings: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Settings as one change, so that their order does not matter to which options of a block are kept."""
    result: dict[str, Any] = {}
    for setting in settings:
        for key, value in setting.items():
            old = result.get(key)
            if isinstance(value, dict) and isinstance(old, str):
                old = {"name": old}  # model=mlp, then model.hidden=[50]
            if isinstance(value, dict) and isinstance(old, dict):
                value = joined([old, value])
            result[key] = value
            if key in ("name", "module"):  # the last one counts
                result.pop("module" if key == "name" else "name", None)
    return result


def _kept(old: dict[str, Any], new: Mapping[str, Any], group: str) -> dict[str, Any]:
    """The options of a block that the plugin which takes its place has, too."""
    if all(old.get(key) == new.get(key) for key in ("name", "module")):
        return old
    try:
        name, module = new.get("name"), new.get("module")
        known = registry.options(registry.load(group, str(name)) if name else registry.load_object(str(module), group))
    except ConfigError:  # shown when the block is built
        return {key: value for key, value in old.items() if key not in ("name", "module")}
    return {key: value for key, value in old.items() if key in known}


def _check(values: dict[str, Any], source: str) -> Config:
    try:
        return Config(**{str(key): value for key, value in values.items()})
    except pydantic.ValidationError as error:
        raise refusal(error, source) from None  # what pydantic says is in it, in our words


def refusal(error: pydantic.ValidationError, source: str, at: tuple[str, ...] = ()) -> ConfigError:
    """What is wrong with a part of a configuration, whose keys are below ``at``, as one message."""
    problems = _of_one_choice([{**problem, "loc": (*at, *problem["loc"])} for problem in error.errors()])
    return ConfigError(f"{source}: " + ";\n  ".join(map(_describe, problems)) + ".")


def _of_one_choice(problems: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Without those of the other choice, and its name, where a key is a word or a mapping (``silo_weights``)."""
    found = []
    for problem in problems:
        key, choice = problem["loc"][:1], problem["loc"][1:]
        if choice and str(choice[0]).startswith(("literal[", "dict[")):
            word = problem["type"] == "literal_error"
            if (word and isinstance(problem["input"], dict)) or problem["type"] == "dict_type":
                continue
            problem = {**problem, "loc": (*key, *choice[1:])}
        found.append(problem)
    return found


def _describe(problem: Any) -> str:
    if problem["type"] == "model_type":
        path = ".".join(map(str, problem["loc"]))
        what = "a plugin's name, or a mapping" if problem["ctx"]["class_name"] == "Block" else "a mapping"
        return f"{path}={problem['input']!r}: must be {what} of keys to values"
    if problem["type"] == "extra_forbidden":
        *parents, key = problem["loc"]
        known = _known_keys(parents)
        near = meant(str(key), known, ".".join(map(str, parents)))
        return f"{'.'.join(map(str, problem['loc']))} is not a known key{near or '. Known: ' + ', '.join(known)}"
    if problem["type"] == "value_error":
        where = ".".join(map(str, problem["loc"]))
        return (f"{where}: " if where else "") + str(problem["ctx"]["error"]).removesuffix(".")
    return describe(problem)


def unknown_beside_grid(problem: Any, block: str, known: Sequence[str]) -> str:
    """What is wrong with a key that `sweep` or `tune` does not have; those of the configuration belong under grid."""
    *parents, key = map(str, (block, *problem["loc"]))
    of_config = "." in key or (key in Config.model_fields and isinstance(problem["input"], list))
    mend = f": put it under {'.'.join(parents)}.grid" if of_config else nearest(key, known)
    return f"{'.'.join(parents)}.{key} is not a known key{mend}. Known: {', '.join(known)}"


def _known_keys(parents: list[Any]) -> list[str]:
    kind: Any = Config
    for parent in parents:
        # A mapping may have keys of the user's, such as names of silos; and a block may be left out.
        kind = get_args(kind)[1] if get_origin(kind) is dict else kind.model_fields[str(parent)].annotation
        if NoneType in get_args(kind):
            kind = next(one for one in get_args(kind) if one is not NoneType)
    return list(kind.model_fields)


# Where and how often files are written, and how silos are stacked, changes no bit of a result; but see `_excluded`.
NOT_IN_ID: Final[dict[str, Any]] = {
    "name": True,
    "out": True,
    "description": True,
    "trackers": True,
    "checkpoint": True,
    "data": {"folder", "memory_map"},
    "evaluation": {"reveal"},
    "privacy": {"ledger"},
    "runtime": {"stack", "kind", "silo_timeout", "server_timeout", "on_silo_failure", "min_silos", "silo_folder"},
}


def run_id(config: Config) -> str:
    """12 hex digits that name a run: a hash of all that determines its result."""
    values = config.model_dump(mode="json", exclude=_excluded(config))
    # A key of earlier versions, which the names of their runs hold: where noise is drawn.
    values["runtime"]["noise"] = "host" if config.runtime.device == "cpu" else "device"
    return _digest(values)


def _excluded(config: Config) -> dict[str, Any]:
    """`NOT_IN_ID`, and a key that is younger than the names of runs, where it says nothing.

    In lockstep the size of a stack counts: sums round by it, and the same noise on sums that round in another way would
    show by how much.
    """
    left_out = NOT_IN_ID if config.silos else {**NOT_IN_ID, "silos": True}
    if not config.runtime.in_lockstep:
        return left_out
    return {**left_out, "runtime": NOT_IN_ID["runtime"] - {"stack"}}


def _digest(values: dict[str, Any], digits: int = 12) -> str:
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:digits]


def to_yaml(config: Config) -> str:
    """The resolved configuration, which `load` reads back to the same."""
    plain = _plain(config.model_dump(mode="python"))
    known = repr(plain)  # tells 1 from 1.0, from True and from "1"
    with _TEXTS_LOCK:
        text = _texts.get(known)
    if text is None:
        text = dump(plain)
        with _TEXTS_LOCK:
            _texts[known] = text
            while len(_texts) > MOST_TEXTS:
                del _texts[next(iter(_texts))]
    return text


MOST_TEXTS: Final = 16  # that are kept: a process may open hundreds of silos with one configuration
_texts: dict[str, str] = {}
_TEXTS_LOCK: Final = threading.Lock()


def given_values(config: Config) -> dict[str, Any]:
    """The keys that were given, as a file has them; not those that have their defaults."""
    found: dict[str, Any] = _plain(config.model_dump(mode="python", exclude_unset=True))
    return found


def _plain(value: Any) -> Any:
    """With lists for tuples, as YAML has them, and without the one of a block's name and module that is not set.

    Other values that are null stay: to a plugin, null need not mean its default.
    """
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items() if v is not None or k not in ("name", "module")}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _sweep_schema(definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema of `sweep:`; what it refers to is added to ``definitions``."""
    schema = SweepConfig.model_json_schema()
    definitions.update(schema.pop("$defs"))
    return schema


def json_schema() -> dict[str, Any]:
    """JSON schema of configuration files, for editors."""
    schema = Config.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "dpfl configuration"
    schema["properties"]["tune"] = TuneConfig.model_json_schema()
    schema["properties"]["variants"] = {
        "type": "object",
        "description": "label: changes of this file; one run for each",
        "additionalProperties": {"type": "object"},
    }
    schema["properties"]["compare"] = {
        "type": "array",
        "description": "pairs of variants whose difference is stated at the end",
        "items": {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 2},
    }
    schema["properties"]["sweep"] = _sweep_schema(schema["$defs"])
    block = schema["$defs"]["Block"]
    block["oneOf"] = [{"required": ["name"]}, {"required": ["module"]}]
    for holder in (schema, *schema["$defs"].values()):
        for field in holder.get("properties", {}).values():
            for place in (field, field.get("items", {})):  # one block, or a list of them
                if place.get("$ref") == "#/$defs/Block":
                    place["anyOf"] = [{"type": "string"}, {"$ref": place.pop("$ref")}]
    return schema
