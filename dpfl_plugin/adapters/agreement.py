"""What a server and its silos have to agree on: the algorithm, how releases are made private, and the model's shape."""

from __future__ import annotations

import functools
import hashlib
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor, nn

from dpfl_plugin.adapters.frozen import FIXED
from dpfl_plugin.adapters.message import Layout as MessageLayout
from dpfl_plugin.adapters.settings import check_first_round, check_parts, check_settings
from dpfl_plugin.algorithms.base import Algorithm, RoundPlan, Setting
from dpfl_plugin.config.incompatible import check_compatible
from dpfl_plugin.config.load import NOT_IN_ID, configure
from dpfl_plugin.config.privacy import PrivacyConfig
from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.streams import stream
from dpfl_plugin.core.vectors import Layout, Vectors
from dpfl_plugin.data.schema import TableSchema
from dpfl_plugin.errors import ConfigError, PluginError, UnsupportedError, require
from dpfl_plugin.federation.planning import rehearse
from dpfl_plugin.models.build import check_layers
from dpfl_plugin.models.fixed import pack, structure
from dpfl_plugin.runs.algorithm_setting import make_setting
from dpfl_plugin.runs.plugins import is_ours


@dataclass(frozen=True, slots=True)
class Agreement:
    """What both sides know, and nothing that is secret. Made by `agree`.

    Attributes:
        config: as given; its ``data``, ``model`` and the like mean nothing here.
        num_silos: M. run: a digest of all of it: messages of another one are refused.
        down: the vectors of a download.
        structure: a digest of how the model is built; fixed_bytes: the size of what of it does not train.
        by_schema: how records become features, where a schema says it; it is in no digest.
    """

    config: Config
    num_silos: int
    layout: Layout
    dtype: torch.dtype
    algorithm: Algorithm
    setting: Setting
    down: MessageLayout
    run: str
    structure: str
    fixed_bytes: int
    by_schema: TableSchema | None = None

    def flatten(self, model: nn.Module) -> Tensor:
        """The trainable parameters as one vector (d,), on the CPU.

        Raises:
            ConfigError: the model is not the one that was agreed on.
        """
        self.check(model)
        return self.layout.flatten(dict(model.named_parameters())).cpu()

    def check(self, model: nn.Module) -> None:
        """Raise ConfigError unless the model is the one that was agreed on."""
        if Layout.of(model) != self.layout:
            raise ConfigError(
                f"this {type(model).__name__} has other trainable parameters than the model that was agreed on."
            )
        if structure(model) != self.structure:
            raise ConfigError(
                f"this {type(model).__name__} is built differently from the model agreed on: its layers, their "
                "options, or tensors that are plain attributes differ. Make these buffers (register_buffer), which "
                "travel, and build the same model everywhere."
            )

    def write(self, vector: Tensor, model: nn.Module) -> None:
        """Set the model's trainable parameters to ``vector`` (d,)."""
        parameters = dict(model.named_parameters())
        with torch.no_grad():
            for name, value in self.layout.unflatten(vector).items():
                parameters[name].copy_(value)

    def down_with(self, vectors: Vectors) -> MessageLayout:
        """What a download has to hold: with what does not train, where that was sent along."""
        return {**self.down, FIXED: (torch.uint8, self.fixed_bytes)} if FIXED in vectors else self.down

    def up(self, server: Vectors, plan: RoundPlan) -> MessageLayout:
        """The vectors that silos upload in a round."""
        found, _ = rehearse(self.algorithm, server, plan)
        return {name: (value.dtype, value.shape[1]) for name, value in found.items()}


Permit = Callable[[Config, int | None], None]
"""(configuration, num_records) -> None; raises LimitError where the owner of this machine allows less."""


def agree(
    block: Mapping[str, Any],
    *,
    num_silos: int,
    model: nn.Module,
    source: str = "dpfl_args",
    permit: Permit | None = None,
) -> Agreement:
    """Check what a platform's settings say of this package.

    Args:
        block: keys of a configuration (docs/configuration.md): ``algorithm``, ``privacy``, ``rounds``, ``silo_rate``,
            ``seed`` (of what the server draws, and of no noise; 0 by default), ``loss``, ``l2``, ``engine``, ``name``,
            ``max_participations``, ``description``, ``runtime``; ``silo_weights``, a number for every silo; and
            ``num_records``, that of the smallest silo, where an algorithm plans by them and they may be known.
        source: named in messages.
        permit: what the owner of this machine allows, which is asked before anything that the settings name is
            imported: at a silo `Limits.check_settings`. None where who writes the settings decides: in a simulation
            without limits, and at a server of one's own.

    Raises:
        LimitError: the owner allows less. ConfigError: a key is unknown or wrong.
        UnsupportedError: it asks for what is not sound on a platform, or a layer mixes records or draws at random.
    """
    values = {str(key): value for key, value in block.items()}
    check_settings(values, source)
    least = values.pop("num_records", None)
    require(least is None or (type(least) is int and least > 0), f"{source}: num_records", least, "be a positive count")
    require(num_silos >= 1, f"{source}: number of silos", num_silos, "be at least 1")
    if isinstance(values.get("privacy"), PrivacyConfig):
        values["privacy"] = values["privacy"].model_dump(mode="python", exclude_unset=True)
    if isinstance(values.get("privacy"), Mapping):
        values["privacy"] = {**{k: v for k, v in values["privacy"].items() if k != "secure"}, "randomness": "fresh"}
    if values.get("seed") is None:
        values["seed"] = 0  # not drawn, so that a server that is started again goes on with the same draws
    config = configure(values, source=source)
    check_compatible(config, "platform", source)
    if permit is not None:
        permit(config, least)
    check_layers(model, type(model).__name__)  # at the server, too: no silo has to be asked to find it
    layout, dtype = Layout.of(model), _dtype(model)
    algorithm = check_parts(config, layout, source)
    setting = make_setting(config, (least or 1,) * num_silos)
    if least is None:
        setting = replace(setting, num_records=None)
    server = algorithm.init_server(torch.zeros(layout.dimension, dtype=dtype), setting)
    down = {name: (value.dtype, value.numel()) for name, value in algorithm.download(server).items()}
    first = algorithm.round_plan(server, 0, setting, stream(config.public_seed, "plan", 0))
    if first.participation not in ("all", "sampled"):
        raise UnsupportedError(
            f"{source}: algorithm: silos are drawn with replacement, so that some would weigh more. Weights are equal "
            "here: draw without replacement."
        )
    check_first_round(config, algorithm, server, first)
    built, fixed_bytes = structure(model), pack(model).numel()
    run = _digest(config, setting, layout, dtype, built)
    return Agreement(config, num_silos, layout, dtype, algorithm, setting, down, run, built, fixed_bytes)


class Agreements:
    """What `agree` made in one process, for platforms that ask for every message: the last `MOST`. Safe for threads.

    Made once for the same settings, to the type of each value, and models that are built alike: parameters of the same
    names, types and shapes, and one `structure`. Layers are checked at each. Algorithms of others are made anew each
    time: what they keep is not known.
    """

    MOST: Final = 8

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Agreement] = {}
        self._lock = threading.Lock()

    def agree(
        self,
        block: Mapping[str, Any],
        *,
        num_silos: int,
        model: nn.Module,
        source: str,
        permit: Permit | None = None,
    ) -> Agreement:
        """As `agree`; ``permit`` is asked each time."""
        if not _is_plain(block):
            return agree(block, num_silos=num_silos, model=model, source=source, permit=permit)
        check_layers(model, type(model).__name__)
        built = Layout.of(model), _dtype(model), structure(model), pack(model).numel()
        key = (repr(block), repr(num_silos), source, *built)
        with self._lock:
            found = self._known.get(key)
        if found is not None and permit is not None:
            permit(found.config, found.setting.num_records)
        if found is None:
            found = agree(block, num_silos=num_silos, model=model, source=source, permit=permit)
            with self._lock:
                if is_ours(found.algorithm):
                    self._known[key] = found
                while len(self._known) > self.MOST:
                    del self._known[next(iter(self._known))]
        return found


@functools.cache
def agreed_here() -> Agreements:
    """Those of this process; a function for the sake of Ray, as `kept.kept_here`."""
    return Agreements()


def _is_plain(value: object) -> bool:
    """Whether it is nothing but what its text shows."""
    if type(value) is dict:
        return all(type(key) is str and _is_plain(one) for key, one in value.items())
    if type(value) in (list, tuple):
        return all(map(_is_plain, value))  # type: ignore[call-overload]
    return value is None or type(value) in (bool, int, float, str)


def _dtype(model: nn.Module) -> torch.dtype:
    dtypes = {parameter.dtype for parameter in model.parameters() if parameter.requires_grad}
    if len(dtypes) != 1 or not dtypes <= {torch.float32, torch.float64}:
        raise PluginError(
            f"the model {type(model).__name__} must have trainable parameters of one type, float32 or float64; it has "
            f"{', '.join(sorted(map(str, dtypes))) or 'none'}."
        )
    return dtypes.pop()


def _digest(config: Config, setting: Setting, layout: Layout, dtype: torch.dtype, built: str) -> str:
    chosen = config.model_dump(mode="json", exclude={**NOT_IN_ID, "runtime": True, "engine": True})
    shapes = [[name, list(shape)] for name, shape in zip(layout.names, layout.shapes, strict=True)]
    values = {"config": chosen, "setting": asdict(setting), "shapes": shapes, "dtype": str(dtype)}
    values["structure"] = built
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]
