"""The name of a run's batches and noise, and whether a folder's run is still the one that it was.

**The rule.** Noise repeats only where all that decides what is released is proven to be the same. So the name is a
digest of the configuration, the records, the code (ours, users', what they put into torch, and the versions of what is
installed), the model that was made with its initial parameters, buffers and attributes, and of what computes:
processor, device, threads, libraries and their switches. What may differ and is in none of these is met by
`federation.query_digest`, which binds the noise of each round to what is asked in it.

Where something cannot be proven, a part of the name comes from the operating system: then no other run has this noise,
and what is released is charged as a run of its own.
"""

from __future__ import annotations

import re
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from dpfl_plugin import loaded
from dpfl_plugin.config.load import noise_name
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.requests import request_digest
from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.errors import ConfigError, UnplannedError, Worded
from dpfl_plugin.gradients.whose import put_into_torch
from dpfl_plugin.models.attributes import Attributes, describe
from dpfl_plugin.runs.build import Parts
from dpfl_plugin.runs.environment import package_changed, package_sha256
from dpfl_plugin.runs.folder import RunFolder
from dpfl_plugin.runs.foreign_code import Code, code_of, installed

ANEW: Final = "start over with another {out} for what there is now; what ledger.jsonl holds stays spent"


FRESH: Final = "noise is fresh"  # how a reporter is told of doubts


class OtherCodeError(ConfigError):
    """A run was made with different code than there is now; the message names what changed."""


@dataclass(frozen=True, slots=True)
class Naming:
    """What names a run, and what it was made of.

    Attributes:
        noise: names the run in a ledger that several share, its records included.
        bits: names its random bits, where the server sees it: without the records, which each silo adds for itself.
        facts: what a checkpoint keeps, to tell later whether a run is the same.
        doubts: why part of the name is drawn; empty where it is not.
    """

    noise: str
    bits: str
    facts: Mapping[str, Any]
    doubts: tuple[str, ...]

    def said(self) -> list[str]:
        """What to tell the user, once."""
        if not self.doubts:
            return []
        return [
            f"{FRESH}: running this configuration again will draw other noise and be charged in addition. Why: "
            + "; ".join(self.doubts)
        ]


def name_run(config: Config, parts: Parts, here: Mapping[str, Any], began: Mapping[str, Any] | None) -> Naming:
    """The name of a run, new or begun.

    Args:
        config: with what was solved for besides the noise multiplier.
        here: what computes, see `environment.arithmetic`.
        began: facts of its checkpoint, if it was begun.
    """
    code, model, options = code_of(config, parts.plugins), model_facts(parts.module, parts.attributes), parts.options
    doubts = doubts_of(code, parts)
    if package_changed():
        doubts.append("files of dpfl_plugin changed since this process began")
    into_torch = describe(put_into_torch())
    doubts += into_torch.doubts
    if here["device"] != "cpu":
        doubts.append(f"{here['device']} may round in another way each time")
    made_of: dict[str, Any] = {"code": code.facts, "model": model, "arithmetic": dict(here), "options": options.facts}
    others = {str(name): request_digest({}, [made, into_torch.facts[1]]).hex() for name, made in into_torch.facts[0]}
    if others:
        made_of["torch"] = others
    if parts.own.of:
        made_of["silos"] = parts.own.facts(parts.rules)
    noise, bits = (noise_name(config, by, parts.noise_multiplier, made_of) for by in (parts.data_sha256, ""))
    if doubts:
        noise = bits = secrets.token_hex(16)
    elif parts.rules.secure:  # nothing of another run comes again, not even who takes part
        noise = secrets.token_hex(16)
    if began is not None:
        noise, bits = str(began["noise"]), str(began["bits"])
    facts = {
        "noise": noise,
        "bits": bits,
        "package": package_sha256(),
        **{key: made_of[key] for key in ("code", "model")},
        "options": request_digest({}, options.facts).hex(),
        "torch": others,
    }
    return Naming(noise, bits, facts, tuple(doubts))


def doubts_of(code: Code, parts: Parts) -> list[str]:
    """Why what a run computes may not be what it would compute again, in words; empty if it is.

    Args:
        code: `code_of` its configuration.
    """
    return [*code.doubts, *parts.attributes.doubts, *parts.options.doubts]


def model_facts(module: torch.nn.Module, attributes: Attributes | None = None) -> dict[str, str]:
    """Digests of a model: what it is built of, and its parameters and buffers, frozen ones too.

    Args:
        attributes: of its layers, and of the loss; None to look at the model's as they are now.
    """
    found = describe({"the model": module}) if attributes is None else attributes
    shape = re.sub(r" at 0x[0-9a-f]+", "", repr(module))
    grad = [[name, parameter.requires_grad] for name, parameter in module.named_parameters(remove_duplicate=False)]
    kinds = [f"{type(layer).__module__}.{type(layer).__qualname__}" for layer in module.modules()]
    tensors: Vectors = {f"parameter {name}": value for name, value in module.named_parameters(remove_duplicate=False)}
    tensors |= {f"buffer {name}": value for name, value in module.named_buffers(remove_duplicate=False)}
    return {
        "structure": request_digest({}, [shape, grad, kinds, found.facts]).hex(),
        "parameters": request_digest(tensors).hex(),
    }


def check_same(folder: RunFolder, began: Mapping[str, Any], naming: Naming, here: Mapping[str, Any]) -> None:
    """Check that a run may go on: its code and its model are those that it began with.

    Raises:
        OtherCodeError: they are not; names what changed.
    """
    changes, model = changed_files(naming.facts["code"], began["code"]), naming.facts["model"]
    now, then = naming.facts["torch"], began.get("torch", {})
    changes += [
        f"{name}, as put into torch, {'is new' if name not in then else 'is gone' if name not in now else 'changed'}"
        for name in sorted({*now, *then})
        if now.get(name) != then.get(name)
    ]
    same_libraries = all(began["arithmetic"].get(key) == here[key] for key in ("torch", "device", "dpfl_plugin"))
    if not changes and same_libraries:
        what = [f"the model's {key}" for key, value in model.items() if value != began["model"][key]]
        if naming.facts["options"] != began.get("options"):
            what.append("what the algorithm or the mechanism holds")
        if what:
            changes = [
                f"{' and '.join(what)}: code reads something that changed, e.g. a file or an environment variable"
            ]
    if changes:
        raise OtherCodeError(
            Worded(
                f"{folder.path}: this run was made with different code: {'; '.join(changes)}. To continue with "
                f"{{resume=True}}, put back what it was; or {ANEW}."
            )
        )


def check_shown(folder: RunFolder, config: Config, began: Mapping[str, Any], package: str) -> list[str]:
    """Check that a finished run's result is that of the code that there is now; what differs besides, in words.

    Args:
        package: `environment.package_sha256`.

    Raises:
        OtherCodeError: users' code changed; PluginError: it cannot be loaded any more.
    """
    now = code_of(config, began["code"]["files"])
    changes = changed_files(now.facts, began["code"])
    if changes:
        raise OtherCodeError(
            Worded(
                f"{folder.path} holds the result of this configuration, made with different code: "
                f"{'; '.join(changes)}. Use another {{out}} for the new code; or put the old one back, to see its "
                "result."
            )
        )
    # No model was made, which is what many of them were met by.
    packages = {**installed(began["code"]["packages"]), **now.packages}
    notes = [
        f"since this result was made, {change}" for change in changed_packages({"packages": packages}, began["code"])
    ]
    if began["package"] != package:
        notes.append("since this result was made, dpfl_plugin changed: to make it again, use another out folder")
    return notes


def changed_files(now: Mapping[str, Any], then: Mapping[str, Any]) -> list[str]:
    """The modules whose source is not what it was, in words."""
    return Code(now["files"]).changes({"files": then["files"], "packages": {}})


def changed_packages(now: Mapping[str, Any], then: Mapping[str, Any]) -> list[str]:
    """The distributions that are not what they were, in words."""
    return Code(packages=now["packages"]).changes({"files": {}, "packages": then["packages"]})


class StillTheSame:
    """Looks, while a run goes on, whether its code is still what it was named for."""

    def __init__(self, config: Config, plugins: tuple[object, ...], files: Mapping[str, str]) -> None:
        self._config, self._plugins, self._files = config, plugins, files
        self._looked_at: object = None

    def __call__(self) -> None:
        """Look, if anything was imported since this was asked last.

        Raises:
            UnplannedError: it is not.
        """
        imported = loaded.times(), len(sys.modules)
        if imported == self._looked_at:
            return
        self._looked_at = imported
        changes = changed_files(code_of(self._config, self._plugins).facts, {"files": self._files})
        if changes:
            raise UnplannedError(
                Worded(
                    f"the code is not what the run was named for: {'; '.join(changes)}. Import it at the top of the "
                    "module that uses it, and leave files as they are while a run goes on; then start over with "
                    "another {out}"
                )
            )
