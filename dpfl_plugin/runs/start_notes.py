"""Notes before the first round: what a user may want to know, or to change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from torch import Tensor, nn

from dpfl_plugin.config.schema import Config
from dpfl_plugin.core.rounding import digits, places
from dpfl_plugin.core.text import counted
from dpfl_plugin.data.tables import NAME as TABLE
from dpfl_plugin.gradients.choice import faster
from dpfl_plugin.models.fields import FieldsModel
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.shared_ledger import adaptive_total, runs_in
from dpfl_plugin.runs.build import Parts
from dpfl_plugin.runs.hooks import Hooks
from dpfl_plugin.runs.privacy_rules import weak_claims
from dpfl_plugin.runs.records import compared_sites
from dpfl_plugin.runs.signal import weak_signal_of
from dpfl_plugin.runs.silo_settings import describe_silos, unequal

FRESH: Final = "randomness fresh: batches and noise come from the operating system, and another run draws other ones."
SEEDED: Final = (
    "randomness seeded (seed {seed}): a reproducible simulation, whose noise can be computed from its seed and "
    "protects nobody."
)
FAR: Final = 100.0
"""Pixels from 0 to 255 and incomes exceed it if nobody scaled them; ages in years do not."""
MOST_COMPARED: Final = 1_000_000
"""Features of all training records: tables with more take over half a second to compare, as long as reading them."""
LARGE: Final = "units, categories and dates of sites are not compared, as the tables are large: dpfl check does so"


def note_start(config: Config, parts: Parts, hooks: Hooks) -> None:
    """Note the randomness, records, device, engine, memory, noise and checkpoints of a run."""
    columns = () if parts.inputs is None or config.data.preprocess else parts.inputs.columns
    scale = feature_scale_check((records.features for records in parts.train.values()), columns, parts.module)
    hooks.note(FRESH if config.fresh else SEEDED.format(seed=config.seed))
    for text in (*parts.notes, *([] if scale is None else [scale])):
        hooks.note(f"records: {text}.")
    if shared := parts.holding.shared_gpus:
        hooks.note(f"device: {'; '.join(shared)}. If memory runs short, give each its part: runtime.memory_budget.")
    hooks.detail(f"engine {parts.engine.name}: {parts.engine_reason}")
    for advice in faster(parts.module, parts.engine.name):
        hooks.note(f"warning: engine {parts.engine.name}: {advice}.")
    hooks.detail(f"memory: {parts.memory.summary()}")
    if parts.memory.warning:
        hooks.note(f"warning: {parts.memory.warning}.")
    if "delta" not in config.privacy.model_fields_set and parts.noise_multiplier:
        unit, most = config.privacy.unit, max(parts.num_records)
        of = (
            ""
            if unit == "silo"
            else f" The largest silo has {most:,} {unit}s to train on: keep delta well below 1/{most:,}."
        )
        hooks.note(f"delta is {digits(config.privacy.delta, 6)}, the default; privacy.delta changes it.{of}")
    for caveat in weak_claims(config, parts.rules, parts.num_records):
        hooks.note(f"warning: {caveat}")
    if config.privacy.noise_multiplier is None:
        noise = digits(parts.noise_multiplier, 6)
        hooks.note(f"noise_multiplier solved: {noise}, {_solved_for(config)}")
        if why := weak_signal_of(parts):
            hooks.note(f"{why[0].upper()}{why[1:]}.")
    every, seconds = config.checkpoint.when(fresh=parts.rules.fresh)
    if parts.rules.fresh and every != 1 and seconds:
        hooks.note(
            "checkpoint: noise is fresh, so what was released after the last checkpoint is charged again if the run is "
            "killed. Leave out checkpoint.every and checkpoint.seconds to have one after every round."
        )
    _note_silos(config, parts, hooks)


def site_notes(config: Config, base: Path, parts: Parts) -> tuple[str, ...]:
    """How sites' tables differ, where this process has those of all sites; not for files, see `compared_sites`."""
    if config.data.dataset.name != TABLE or len(parts.train) < parts.setting.num_silos:
        return ()
    if sum(records.features.numel() for records in parts.train.values()) <= MOST_COMPARED:
        return compared_sites(config, base)
    return (LARGE,) if parts.holding.names else ()


def shared_total(shared: Ledger, delta: float) -> str | None:
    """What a shared ledger comes to with the plan of the run that begins; None where it holds no other run."""
    num_runs = len(runs_in(shared))
    if num_runs < 2 or shared.path is None:
        return None
    total = total_in_words(adaptive_total(shared, delta))
    return f"ledger {shared.path.name}: with this run's plan, its {num_runs} runs come to {total}."


def total_in_words(total: Mapping[str, Any]) -> str:
    """What `adaptive_total` gives."""
    if total["epsilon"] is None:
        return f"no total that holds: {total['why']}"
    return f"epsilon {places(total['epsilon'], 3)} at delta {digits(total['delta'], 6)}"


def total_with_others(total: Mapping[str, Any]) -> str:
    """What `prepare.total_with` gives."""
    runs = counted(total["num_runs"], "run")
    amount = total_in_words(total)
    return f"with the {runs} that {total['ledger']} holds, this comes to {amount}, also if they decided on this one"


def _solved_for(config: Config) -> str:
    privacy = config.privacy
    view = privacy.budget_view.replace("_", " ")
    cap, rounds = config.max_participations, config.rounds
    most = f"at most {cap} rounds of a silo" if cap and rounds and cap < rounds else counted(rounds or 0, "round")
    return f"for {most} within epsilon {privacy.epsilon:g} at delta {digits(privacy.delta, 6)} ({view} view)"


def _note_silos(config: Config, parts: Parts, hooks: Hooks) -> None:
    """Note what silos with settings of their own have, and what that may cost the others."""
    for text in describe_silos(parts.own, parts.rules, config):
        hooks.note(text)
    noises = {own.noise_multiplier for own in parts.rules.silos.values()}
    if len({*noises, parts.noise_multiplier}) > 1 and config.silo_weights in ("equal", "records"):
        hooks.note("silos differ in their noise: silo_weights=noise weighs them by it.")
    for text in unequal(config, parts.num_records):
        hooks.note(f"{text}.")


def feature_scale_check(features: Iterable[Tensor], columns: Sequence[str], module: nn.Module) -> str | None:
    """Note a feature that is further than `FAR` from 0; None if there is none, or if the module looks numbers up.

    Args:
        features: (n, *shape), of each silo. columns: names of the features [d], or none.
    """
    if any(isinstance(part, (nn.Embedding, nn.EmbeddingBag, FieldsModel)) for part in module.modules()):
        return None
    parts = [values for values in features if values.numel()]
    largest = max((_largest(values.aminmax()) for values in parts), default=0.0)
    if largest <= FAR:
        return None
    where, shape = "", parts[0].shape[1:]
    if len(shape) == 1 and len(columns) == shape[0]:
        of_each = [max(_largest(values[:, n].aminmax()) for values in parts) for n in range(shape[0])]
        where = f" (column {columns[of_each.index(max(of_each))]!r})"
    return (
        f"features reach {largest:.6g}{where}: clipped gradients then say next to nothing of smaller ones, and no step "
        "suits both. Unless the model scales them itself, bring them to about 1 by public constants: the ranges of a "
        "schema, or data.preprocess with scale, which treats all alike"
    )


def _largest(ends: tuple[Tensor, Tensor]) -> float:
    low, high = map(float, ends)
    return max(-low, high)
