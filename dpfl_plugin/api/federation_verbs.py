"""What a federation does besides training: an experiment, a tuning, the price of a tuning."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast

from dpfl_plugin.api.objects import plain
from dpfl_plugin.config.keys import RunKeys, shows

if TYPE_CHECKING:
    from dpfl_plugin.api.experiment import Experiment
    from dpfl_plugin.api.federation import Federation
    from dpfl_plugin.api.privacy import Privacy
    from dpfl_plugin.api.tuning import Price, Tuning


class FederationVerbs:
    """The part of a `Federation` that needs an algorithm and privacy."""

    @shows(RunKeys)
    def experiment(
        self,
        *,
        model: Any = "softmax",
        algorithm: Any,
        privacy: Privacy | Mapping[str, Any],
        rounds: int | None = None,
        **keys: Unpack[RunKeys],
    ) -> Experiment:
        """What `dpfl.train` would run, for `dpfl.check`, `plan`, `account`, `audit`, `attack`, `engines` and `.run()`.

        Its file is in a temporary folder, and names the records: they are in this process only.

        Args:
            model, algorithm, privacy, rounds, keys: as `dpfl.train` takes them.

        Raises:
            ConfigError: something that is given is wrong.
        """
        from dpfl_plugin.api.experiment import given_experiment
        from dpfl_plugin.api.training import values_of

        values, held = values_of(cast("Federation", self), model, algorithm, privacy, keys)
        return given_experiment(values if rounds is None else {**values, "rounds": plain(rounds)}, held)

    @shows(RunKeys)
    def tune(
        self,
        tune: Mapping[str, Any],
        *,
        model: Any = "softmax",
        algorithm: Any,
        privacy: Privacy | Mapping[str, Any],
        rounds: int,
        out: str | Path | None = None,
        progress: bool | None = None,
        **keys: Unpack[RunKeys],
    ) -> Tuning:
        """Tune within one budget; the same tuning, to the bit, as `dpfl tune` of a file with these keys.

        ``privacy.epsilon`` is what the server may learn from all candidates and from the winner's whole training
        together. A call like an earlier one goes on where that was, after whatever ended it.

        Args:
            tune: what `tune` is in a file: grid, random, candidates, seed, rungs, eta, share (docs/tuning.md).
            out: folder of the tuning; None: tunes/NAME.
            model, algorithm, privacy, rounds, progress, keys: as `dpfl.train` takes them.

        Raises:
            ConfigError, DataError, UnsupportedError: something that is given is wrong, or cannot be charged.
            TrainingError: the winner failed, or every candidate did; KeyboardInterrupt: asked to stop.
        """
        from dpfl_plugin.api.tuning import tune_given

        given = {"model": model, "algorithm": algorithm, "privacy": privacy, "rounds": rounds, **keys}
        return tune_given(cast("Federation", self), tune, given, out=out, progress=progress)

    @shows(RunKeys)
    def plan_tuning(
        self,
        tune: Mapping[str, Any],
        *,
        model: Any = "softmax",
        algorithm: Any,
        privacy: Privacy | Mapping[str, Any],
        rounds: int,
        out: str | Path | None = None,
        **keys: Unpack[RunKeys],
    ) -> Price:
        """What `tune` with these arguments costs, before anything is trained; ``print`` says it. Errors as there."""
        from dpfl_plugin.api.tuning import plan_given

        given = {"model": model, "algorithm": algorithm, "privacy": privacy, "rounds": rounds, **keys}
        return plan_given(cast("Federation", self), tune, given, out=out)
