"""The configuration of a run: frozen, checked once, every key used.

A *block* names a plugin and its options: ``{name: dirichlet, alpha: 0.1}``, or just ``dirichlet``. The plugin's own
signature says which options there are; they are checked when it is built.
"""

from __future__ import annotations

import functools
import math
import re
import secrets
import shlex
import warnings
from typing import Annotated, Any, Final, Literal

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from dpfl_plugin.config.blocks import Block, PluginBlock, Strict, plugin_block
from dpfl_plugin.config.incompatible import check_compatible
from dpfl_plugin.config.privacy import PrivacyConfig, SiloConfig
from dpfl_plugin.config.scores import EarlyStoppingConfig, PrivateEvaluationConfig, Scoring
from dpfl_plugin.errors import EarlierNameWarning

SCHEMA_KEY: Final = "schema"
"""Of `data`: what the columns of tables hold. It is an option of the data set, and kept there."""


class DataConfig(Strict):
    """Which records, at which silos."""

    model_config = ConfigDict(
        json_schema_extra=lambda schema: schema["properties"].update(
            {
                SCHEMA_KEY: {
                    "type": "object",
                    "description": "what the columns of a table hold: label, silo, person, columns (dataset: table)",
                }
            }
        )
    )

    dataset: PluginBlock = Field(default=Block(name="digits"), description="data set plugin and its options")
    partition: PluginBlock = Field(default=Block(name="iid"), description="how records are dealt to silos")
    num_silos: int | None = Field(default=None, ge=1, description="M; left out where the data set has silos of its own")
    max_records_per_silo: int | None = Field(default=None, ge=2, description="keep at most so many records of a silo")
    test: Literal["split", "own"] = Field(
        default="split", description="test on a share of each silo, or on the set's own part"
    )
    test_fraction: float = Field(
        default=0.2, gt=0, lt=1, description="share of a silo's records held out (test: split)"
    )
    preprocess: list[PluginBlock] = Field(
        default=[], description="steps in order: unit_norm, standardise, pca, hog, backbone"
    )
    folder: str | None = Field(default=None, description="where data files are; else $DPFL_DATA, else ~/.cache/dpfl")
    memory_map: str | None = Field(default=None, description="a folder on a disk: keep records there, not in memory")

    @model_validator(mode="before")
    @classmethod
    def _schema_of_tables(cls, values: Any) -> Any:
        """Configurations without a schema stay what they are: their ids and what owners agreed to are made of them."""
        if not isinstance(values, dict) or SCHEMA_KEY not in values:
            return values
        others = {key: value for key, value in values.items() if key != SCHEMA_KEY}
        if values[SCHEMA_KEY] is None:
            return others
        block = plugin_block(others.get("dataset"))
        block = block.model_dump(exclude_none=True) if isinstance(block, Block) else block
        if not isinstance(block, dict):
            raise ValueError("schema says what the columns of a table hold: dataset must name one, e.g. name: table")
        if block.get("name") not in (None, "table"):
            raise ValueError(f"schema is for tables: dataset: {{name: table, ...}} reads it, {block['name']} does not")
        if SCHEMA_KEY in block:
            raise ValueError("schema is given twice: in data, and in data.dataset")
        return {**others, "dataset": {**block, SCHEMA_KEY: values[SCHEMA_KEY]}}


class EvaluationConfig(Strict):
    """What is measured while training. Measurements read records without noise: they are for the experimenter."""

    every: int | None = Field(
        default=None,
        ge=1,
        description="rounds between evaluations; default: about 100 in a run, at most 10 % of its work",
    )
    dissimilarity: bool = Field(
        default=False, description="also 1/M sum ||grad F_i||^2 - ||grad F||^2: a pass over the data"
    )
    reveal: Literal["experimenter", "server"] = Field(
        default="experimenter",
        description="who gets measurements of raw records; server: rank 0 of MPI ranks, too; no epsilon covers that",
    )


class PersonaliseConfig(Strict):
    """A model of each silo's own, in the end: private steps from the global one, charged as one more round."""

    local_steps: int = Field(ge=1, description="private gradients of each silo")
    local_lr: float = Field(gt=0, lt=math.inf, description="step size")


class StatisticsConfig(Strict):
    """Noisy statistics of columns, by which records are scaled and filled in: one release of each silo, at first."""

    epsilon_share: float = Field(
        default=0.25,
        gt=0,
        lt=1,
        description="of privacy.epsilon: what they alone would cost; their noise is solved for it",
    )
    noise_multiplier: float | None = Field(
        default=None,
        ge=0,
        lt=math.inf,
        description="noise std / sensitivity of a silo's sum, in place of epsilon_share",
    )
    outcome: bool = Field(
        default=False,
        description="count the label, too: the model begins with what that predicts without features",
    )


class AugmentationConfig(Strict):
    """Random views of each image, whose mean gradient is clipped as the record's."""

    views: int = Field(ge=1, le=1024, description="k views of each record at every step; k times the work")
    flip: bool = Field(default=False, description="views may be mirrored, left to right: not for digits or letters")
    crop: int = Field(default=0, ge=0, description="pixels by which views are moved at most, with borders reflected")

    @model_validator(mode="after")
    def _something(self) -> AugmentationConfig:
        if not self.flip and not self.crop:
            raise ValueError(f"{self.views} views that differ in nothing: set crop or flip, or leave augmentation out")
        return self


CHECKPOINT_SECONDS: Final = 30.0


class CheckpointConfig(Strict):
    """When the state is saved, besides at the end and when interrupted."""

    every: int | None = Field(default=None, ge=1, description="rounds between checkpoints")
    seconds: float | None = Field(
        default=None,
        ge=0,
        description="or seconds between them, more where one takes over a twentieth of that; 0: after every round; "
        "default: 30, and with fresh noise, unless `every` is given, after every round",
    )

    def when(self, *, fresh: bool) -> tuple[int | None, float]:
        """(rounds, seconds) between two checkpoints, whichever come first."""
        if fresh and self.every is None and self.seconds is None:
            return 1, CHECKPOINT_SECONDS
        return self.every, CHECKPOINT_SECONDS if self.seconds is None else self.seconds


SIZE: Final = r"([0-9]+(?:\.[0-9]+)?) ?((?:[kmgt]i?)?)b?"  # in any case; with i by powers of 1024
ALL_SILOS: Final = 2**31  # of a stack: more than there can be


class RuntimeConfig(Strict):
    """How it is computed. On CPUs of one kind, results are the same bits for every stack and number of ranks, with as
    many threads; but in lockstep."""

    kind: str = Field(
        default="auto", description="runtime plugin; auto: mpi if mpirun started several ranks, else in_process"
    )

    dtype: Literal["float32", "float64"] = Field(default="float32", description="of model, gradients and noise")
    precision: Literal["float32", "bf16", "tf32"] = Field(
        default="float32",
        description="of products in forward and backward passes; norms, clipping, sums and noise are in dtype",
    )
    device: str = Field(default="cpu", description="torch device")
    threads: int = Field(default=1, ge=1, description="torch threads")
    stack: int | None = Field(
        default=None,
        ge=1,
        description="silos advanced together; default: 1, in lockstep all of a round that a process has",
    )
    lockstep: bool | None = Field(
        default=None,
        description="a stack's gradients by one set of products, which round by who is in it; default: on CUDA only",
    )
    graphs: bool = Field(
        default=False,
        description="on CUDA: what sums of gradients take is recorded once as a CUDA graph, and replayed at every step",
    )
    memory_budget: str | None = Field(
        default=None,
        description="of a run, e.g. 8GB or 500 MiB: for records, states, gradients; left out: 80 % of what there is",
    )
    aggregation: Literal["gather", "reduce"] = Field(
        default="gather", description="mpi: add uploads in silo order, or by MPI_Reduce, whose bits depend on the ranks"
    )
    silo_timeout: float | None = Field(
        default=600.0,
        gt=0,
        description="mpi: seconds after which a silo rank that owes an answer is given up; null: never",
    )
    server_timeout: float | None = Field(
        default=600.0,
        gt=0,
        description="mpi: seconds after which silo ranks give up a server that says nothing; null: never",
    )
    on_silo_failure: Literal["abort", "continue"] = Field(
        default="abort", description="mpi: end the run, or go on without silos whose rank fails (Open MPI 5 with ULFM)"
    )
    min_silos: int = Field(default=1, ge=1, description="continue: the fewest silos to go on with")
    silo_folder: str | None = Field(
        default=None,
        description="mpi: for what rank 0 must not have, the silos' key and measurements; default: in the run's folder",
    )

    @model_validator(mode="before")
    @classmethod
    def _earlier_key(cls, values: Any) -> Any:
        """Leave out `noise`, which files of earlier versions have."""
        if not isinstance(values, dict) or values.get("noise") not in ("host", "device"):
            return values
        warnings.warn(
            f"runtime.noise: {values['noise']} is no longer needed: noise is drawn where the model is. Remove it.",
            EarlierNameWarning,
            stacklevel=2,
        )
        return {key: value for key, value in values.items() if key != "noise"}

    @field_validator("memory_budget")
    @classmethod
    def _size(cls, given: str | None) -> str | None:
        if given is not None and not re.fullmatch(SIZE, given, re.IGNORECASE):
            raise ValueError(f"{given!r} must be a size, e.g. 8GB or 500 MiB")
        return given

    @property
    def in_lockstep(self) -> bool:
        """Whether silos are answered together where the engine can do that."""
        return self.device.startswith("cuda") if self.lockstep is None else self.lockstep


class Config(Strict):
    """A run: data, model, algorithm, privacy, and how it is computed."""

    name: str = Field(default="run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="folder name under out")
    description: str = Field(default="", description="for readers")
    seed: int | None = Field(
        default=None,
        ge=0,
        lt=2**63,
        description="of the initial model and of how records are dealt, and of the noise where privacy.randomness is "
        "seeded, as it is by default with a seed; left out: drawn, and noise is fresh",
    )
    rounds: int | None = Field(
        default=None, ge=1, le=10**7, description="T; left out: as many as privacy.epsilon allows"
    )
    silo_rate: float = Field(default=1.0, gt=0, le=1, description="l, share of silos in a round")
    max_participations: int | None = Field(
        default=None, ge=1, description="the most rounds that a silo takes part in; the run ends when too few are left"
    )
    silo_weights: Literal["equal", "records", "noise"] | dict[str, Annotated[float, Field(gt=0, lt=math.inf)]] = Field(
        default="equal",
        description="of each silo in the mean; noise: by 1 / variance of its noise; or a number for each silo, by name",
    )
    data: DataConfig = DataConfig()
    model: PluginBlock = Field(default=Block(name="softmax"), description="model plugin, or module")
    loss: str = Field(
        default="auto", description="auto, cross_entropy, logistic, hinge, huber, or package.module:function"
    )
    class_weights: Literal["balanced"] | dict[str, Annotated[float, Field(gt=0, lt=math.inf)]] | None = Field(
        default=None,
        description="of each record's loss, by its class, 1 for those not named; balanced: by one charged release of "
        "how many records each class has (private_statistics)",
    )
    l2: float = Field(
        default=0.0, ge=0, lt=math.inf, description="lambda of lambda/2 ||y||^2, added after clipping and noise"
    )
    algorithm: PluginBlock = Field(description="algorithm plugin and its options")
    privacy: PrivacyConfig
    silos: dict[str, SiloConfig] = Field(
        default={}, description="privacy settings of single silos, by name or number; others have those of privacy"
    )
    engine: str = Field(default="auto", description="per-example gradient engine")
    augmentation: AugmentationConfig | None = Field(
        default=None, description="random views of each image, whose mean gradient is clipped as the record's"
    )
    evaluation: EvaluationConfig = EvaluationConfig()
    early_stopping: EarlyStoppingConfig | None = Field(default=None, description="by private validation scores")
    private_evaluation: PrivateEvaluationConfig | None = Field(
        default=None, description="how well records are predicted, by noisy sums that are charged to the budget"
    )
    personalise: PersonaliseConfig | None = Field(
        default=None, description="a model of each silo's own, charged to the budget"
    )
    private_statistics: StatisticsConfig | None = Field(
        default=None,
        description="what the schema of a table asks for by scale: mean, quantiles and missing: most_frequent",
    )
    checkpoint: CheckpointConfig = CheckpointConfig()
    runtime: RuntimeConfig = RuntimeConfig()
    trackers: list[PluginBlock] = Field(
        default=[], description="what keeps curves and results: tensorboard, mlflow, wandb; nothing of it changes a run"
    )
    out: str = Field(default="runs", description="folder of run folders")

    @model_serializer(mode="wrap")
    def _as_given(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without a key that is younger than the names of runs, where it says nothing."""
        values: dict[str, Any] = dump(self)
        for key in ("private_evaluation", "private_statistics", "augmentation", "class_weights"):
            if getattr(self, key) is None:
                values.pop(key, None)
        return values

    @functools.cached_property
    def _drawn_seed(self) -> int:
        return secrets.randbits(31)

    @property
    def public_seed(self) -> int:
        """Of the initial model and of how records are dealt to silos; drawn once where no seed is named.

        With fresh randomness nothing private follows from it.
        """
        return self._drawn_seed if self.seed is None else self.seed

    def with_public_seed(self, seed: int) -> Config:
        """The same configuration, of a run that has drawn its public seed; without effect where one is named."""
        made = self.model_copy()
        made.__dict__["_drawn_seed"] = seed
        return made

    @property
    def least_records(self) -> int | None:
        """A public minimum of how many records a silo has, where their number itself is not public."""
        found: int | None = self.__dict__.get("_least_records")
        return found

    def with_least_records(self, number: int | None) -> Config:
        """The same configuration, at a silo whose owner publishes that it has so many records at least."""
        made = self.model_copy()
        made.__dict__["_least_records"] = number
        return made

    @property
    def fresh(self) -> bool:
        """Whether all that is private is drawn from the operating system, and never again."""
        return self.privacy.randomness == "fresh"

    @property
    def scoring(self) -> Scoring | None:
        """The validation scores that are planned, for whichever purpose."""
        for key in ("early_stopping", "private_evaluation"):
            asked: EarlyStoppingConfig | PrivateEvaluationConfig | None = getattr(self, key)
            if asked is not None:
                own = asked if isinstance(asked, PrivateEvaluationConfig) else None
                bins, at = (0, ()) if own is None else (own.histogram_bins, tuple(own.at or ()))
                return Scoring(
                    key,
                    asked.share,
                    asked.every or self.rounds,
                    asked.noise_multiplier,
                    bins,
                    at,
                    asked.measure,
                    asked.bound,
                )
        return None

    def with_score_noise(self, noise_multiplier: float) -> Config:
        """With the noise of scores that was solved for; as it is, where none are planned."""
        if self.scoring is None:
            return self
        solved = getattr(self, self.scoring.key).model_copy(update={"noise_multiplier": noise_multiplier})
        return self.model_copy(update={self.scoring.key: solved})

    def with_statistics_noise(self, noise_multiplier: float | None) -> Config:
        """As `with_score_noise`, of statistics."""
        if self.private_statistics is None or noise_multiplier is None:
            return self
        solved = self.private_statistics.model_copy(update={"noise_multiplier": noise_multiplier})
        return self.model_copy(update={"private_statistics": solved})

    @model_validator(mode="before")
    @classmethod
    def _earlier_keys(cls, values: Any) -> Any:
        """Leave out `access`, which files of earlier versions have: modes of files are no part of a configuration."""
        return {key: value for key, value in values.items() if key != "access"} if isinstance(values, dict) else values

    @model_validator(mode="before")
    @classmethod
    def _seed_of_earlier_versions(cls, values: Any) -> Any:
        """Theirs was 0 by default: `privacy.secure: false` without a seed repeated."""
        privacy = values.get("privacy") if isinstance(values, dict) else None
        repeats = isinstance(privacy, dict) and privacy.get("secure") is False
        return {**values, "seed": 0} if repeats and values.get("seed") is None else values

    @model_validator(mode="after")
    def _randomness(self) -> Config:
        """The default depends on seed. It is in what is written, so that a run's folder says what was done, but does
        not count as given: a deployment with a seed is fresh all the same."""
        if self.privacy.randomness is None:
            privacy = self.privacy.model_copy()
            privacy.__dict__["randomness"] = "fresh" if self.seed is None else "seeded"
            self.__dict__["privacy"] = privacy
        return self

    @field_validator("silos", "silo_weights", "class_weights", mode="before")
    @classmethod
    def _names(cls, value: Any, info: ValidationInfo) -> Any:
        """YAML reads a silo's or a class's number as a number."""
        if value is None and info.field_name == "class_weights":
            return None
        if not isinstance(value, dict):
            return {} if value is None else value
        if any(isinstance(key, bool) for key in value):
            raise ValueError("YAML reads yes, no, on and off as true and false: write such a name in quotes")
        return {str(key) if type(key) is int else key: of for key, of in value.items()}

    @field_validator("algorithm", "privacy", mode="before")
    @classmethod
    def _present(cls, value: Any) -> Any:
        return {} if value is None else value

    @model_validator(mode="after")
    def _ends(self) -> Config:
        check_compatible(self)
        if self.privacy.randomness == "seeded" and self.seed is None:
            raise ValueError(
                "privacy.randomness: seeded needs a seed: give seed, or leave randomness out for noise from the "
                "operating system"
            )
        if self.privacy.epsilon is None and self.privacy.noise_multiplier is None:
            raise ValueError(
                "privacy.epsilon is missing: give epsilon, for which the least noise is found, or noise_multiplier "
                "(0 for a run without privacy)"
            )
        if self.rounds is None and self.privacy.noise_multiplier is None:
            raise ValueError(
                "rounds is missing: give rounds, so that the least noise with which all of them fit privacy.epsilon "
                "can be found, or privacy.noise_multiplier"
            )
        if self.rounds is None and self.privacy.epsilon is None:
            raise ValueError("rounds is missing: give rounds, or privacy.epsilon to run for as long as it lasts")
        self._check_scores()
        statistics = self.private_statistics
        without = self.privacy.noise_multiplier == 0  # and then without noise here
        if (
            statistics is not None
            and statistics.noise_multiplier is None
            and self.privacy.epsilon is None
            and not without
        ):
            raise ValueError(
                "private_statistics.noise_multiplier is missing: give it, or privacy.epsilon, of which "
                "private_statistics.epsilon_share is a share"
            )
        own_epsilon = any(silo.epsilon is not None for silo in self.silos.values())
        if own_epsilon and self.privacy.epsilon is None:
            raise ValueError("privacy.epsilon is missing: give the budget of the silos that have none of their own")
        return self

    def _check_scores(self) -> None:
        if self.scoring is None:
            return
        key, every = self.scoring.key, self.scoring.every
        if self.rounds is None or every is None:
            raise ValueError(f"{key} needs rounds: how many scores there may be is charged in advance")
        if every > self.rounds:
            raise ValueError(f"{key}.every={every} is more than rounds={self.rounds}: no score is made")
        if self.scoring.at and self.scoring.at[-1] > self.rounds:
            raise ValueError(f"{key}.at={self.scoring.at[-1]} is after the last of rounds={self.rounds}")
        if self.scoring.noise_multiplier is None and self.privacy.epsilon is None:
            raise ValueError(f"{key}.noise_multiplier is missing: give it, or privacy.epsilon, for which it is solved")


SWEEP_SETS: Final = ("array", "output", "error", "open-mode", "requeue", "no-requeue", "signal", "job-name", "ntasks")


def _single(value: Any) -> Any:
    """One message, not one for each of the kinds that it may be."""
    if not isinstance(value, str | int):
        raise ValueError(f"{value!r} must be text, a whole number, true or false")
    return value


class When(Strict):
    """A further grid, for those combinations in which keys have the given values."""

    condition: dict[str, Any] = Field(alias="if", description="key: value, or list of values, of a combination so far")
    grid: dict[str, list[Any]] = Field(description="key.path: list of values")


class SweepConfig(Strict):
    """Which runs: every entry of ``list`` with every combination of ``grid``, with every seed."""

    grid: dict[str, list[Any]] = Field(default={}, description="key.path: list of values; all combinations")
    entries: list[dict[str, Any]] = Field(
        default=[], alias="list", description="changes of the file, one entry for each group of runs"
    )
    when: list[When] = Field(default=[], description="further grids under a condition")
    exclude: list[dict[str, Any]] = Field(
        default=[], description="combinations to leave out: key.path: value, or list of values"
    )
    seeds: int | list[int] | None = Field(default=None, description="a list, or their number: 3 is [0, 1, 2]")
    ranks: int | None = Field(default=None, ge=2, description="MPI ranks of each run; left out: no MPI")
    launcher: str | None = Field(
        default=None, description="what starts the ranks, e.g. srun --mpi=pmi2 -n {ranks}; words as in a shell"
    )
    slurm: dict[str, Annotated[str | int | bool, BeforeValidator(_single)]] = Field(
        default={}, description="options of sbatch: time, partition, gres, ..."
    )
    retry_mem_factor: float | None = Field(
        default=None,
        gt=1,
        description="memory of a task that sacct says ran out of it: times this, each time it is submitted",
    )
    retry_time_factor: float | None = Field(
        default=None, gt=1, description="the same for a task that hit its time limit"
    )
    max_requeues: int | None = Field(
        default=None, ge=0, description="a run that Slurm queued again more often than this counts as failed"
    )
    setup: list[str] = Field(default=[], description="shell lines before a Slurm task begins: module load ...")

    @field_validator("grid")
    @classmethod
    def _values(cls, grid: dict[str, list[Any]]) -> dict[str, list[Any]]:
        for key, values in grid.items():
            if not values:
                raise ValueError(f"{key} has no values: give at least one, or leave it out")
        return grid

    @field_validator("seeds", mode="before")
    @classmethod
    def _numbers(cls, seeds: Any) -> Any:
        """One message, not one for each of the kinds that it may be."""
        if not (seeds is None or isinstance(seeds, int | list)):
            raise ValueError(f"{seeds!r} must be a whole number or a list of them")
        return seeds

    @field_validator("seeds")
    @classmethod
    def _some(cls, seeds: int | list[int] | None) -> int | list[int] | None:
        if seeds == [] or (isinstance(seeds, int) and seeds < 1):
            raise ValueError(f"seeds must not be empty, and is {seeds}: give a list, or their number, 1 or more")
        return seeds

    @field_validator("launcher")
    @classmethod
    def _words(cls, launcher: str | None) -> str | None:
        """It is split into words as by a shell."""
        if launcher is None:
            return None
        try:
            words = shlex.split(launcher)
        except ValueError as error:
            raise ValueError(f"{launcher!r} cannot be split into words ({error}): close each quote") from error
        if not words:
            raise ValueError(f"{launcher!r} names no program: give one, e.g. mpirun -n {{ranks}}, or leave it out")
        return launcher

    @field_validator("slurm")
    @classmethod
    def _free(cls, slurm: dict[str, str | int | bool]) -> dict[str, str | int | bool]:
        for key in slurm:
            if not re.fullmatch(r"-{0,2}[A-Za-z][\w-]*", key):
                raise ValueError(f"{key!r} is no option of sbatch: use letters, digits and dashes")
            if key.lstrip("-") in SWEEP_SETS:
                raise ValueError(f"{key} is set by dpfl sweep itself; leave it out")
        return slurm
