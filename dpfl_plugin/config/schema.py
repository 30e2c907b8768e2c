"""The configuration of a run: frozen, checked once, every key used.

A *block* names a plugin and its options: ``{name: dirichlet, alpha: 0.1}``, or just ``dirichlet``. The plugin's own
signature says which options there are; they are checked when it is built.
"""

from __future__ import annotations

import math
import re
import shlex
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from dpfl_plugin.access import Access

RECORD_RATE: Final = 0.2  # s of Noble et al.; a smaller one takes less noise, and more local steps for a pass


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=True)


class Block(BaseModel):
    """A plugin by ``name``, or users' own code by ``module: package.module:factory``; and its options."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str | None = None
    module: str | None = None

    @model_validator(mode="after")
    def _one_of(self) -> Block:
        if (self.name is None) == (self.module is None):
            raise ValueError("a block needs exactly one of name (a registered plugin) and module (package.module:name)")
        return self

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.__pydantic_extra__ or {})


def _block(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


PluginBlock = Annotated[Block, BeforeValidator(_block)]


class DataConfig(_Strict):
    """Which records, at which silos."""

    dataset: PluginBlock = Field(default=Block(name="digits"), description="data set plugin and its options")
    partition: PluginBlock = Field(default=Block(name="iid"), description="how records are dealt to silos")
    num_silos: int | None = Field(None, ge=1, description="M; left out where the data set has silos of its own")
    max_records_per_silo: int | None = Field(None, ge=2, description="keep at most so many records of a silo")
    test: Literal["split", "own"] = Field("split", description="test on a share of each silo, or on the set's own part")
    test_fraction: float = Field(0.2, gt=0, lt=1, description="share of a silo's records held out (test: split)")
    preprocess: list[PluginBlock] = Field(default=[], description="steps in order: standardise, unit_norm, pca, scale")
    folder: str | None = Field(None, description="where data files are; else $DPFL_DATA, else ~/.cache/dpfl")
    memory_map: str | None = Field(None, description="a folder on a disk: keep records there, not in memory")


class PrivacyConfig(_Strict):
    """How releases are made private, and how much may be spent."""

    unit: Literal["record", "silo"] = Field("record", description="what neighbouring data sets differ in")
    neighbouring: Literal["replace_one", "add_or_remove"] | None = Field(
        None, description="default: what the sampler is accounted under; replace_one for unit: silo"
    )
    mechanism: PluginBlock = Field(default=Block(name="gaussian"), description="what makes a value noisy")
    clip_norm: float = Field(1.0, gt=0, description="C, L2 bound of one example's gradient (inf: no clipping)")
    clip: PluginBlock = Field(default=Block(name="flat"), description="how C bounds an example, and who chooses it")
    noise_multiplier: float | None = Field(
        None,
        ge=0,
        lt=math.inf,
        description="sigma_g, noise std / L2 sensitivity; 0: none; left out: the least that affords all rounds",
    )
    schedule: PluginBlock = Field(
        default=Block(name="constant"), description="how the noise changes from round to round, or step to step"
    )
    sampler: Literal["fixed", "poisson", "full", "with_replacement"] = Field(
        "fixed", description="how a batch is drawn; with_replacement: for unit: silo"
    )
    record_rate: float | None = Field(
        None, gt=0, le=1, description="s, share of a silo's records in a batch; 0.2 if batch_size is left out, too"
    )
    batch_size: int | None = Field(None, ge=1, description="instead of record_rate, the same count at every silo")
    epsilon: float | None = Field(None, gt=0, description="budget: the run stops before the round that would pass it")
    delta: float = Field(1e-5, gt=0, lt=1, description="at which epsilon is stated; well below 1 / records")
    budget_view: Literal["server", "third_party"] = Field("server", description="whose epsilon the budget bounds")
    accountant: PluginBlock = Field(default=Block(name="pld"), description="what composes the releases")
    secure: bool = Field(
        False, description="batches and noise from the operating system's randomness, not from seed: for real use"
    )

    @model_validator(mode="before")
    @classmethod
    def _batches(cls, values: Any) -> Any:
        """The default depends on other keys, and is written out, so that a run's folder says what was done."""
        if not isinstance(values, dict) or values.get("sampler", "fixed") == "full":
            return values
        given = any(values.get(key) is not None for key in ("record_rate", "batch_size"))
        return values if given else {**values, "record_rate": RECORD_RATE}


class EvaluationConfig(_Strict):
    """What is measured while training. Measurements read records without noise: they are for the experimenter."""

    every: int | None = Field(
        None,
        ge=1,
        description="rounds between evaluations; default: about 100 in a run, at most 10 % of its work",
    )
    dissimilarity: bool = Field(False, description="also 1/M sum ||grad F_i||^2 - ||grad F||^2: a pass over the data")
    reveal: Literal["experimenter", "server"] = Field(
        "experimenter",
        description="who gets measurements of raw records; server: rank 0 of MPI ranks, too; no epsilon covers that",
    )


class EarlyStoppingConfig(_Strict):
    """Noisy validation scores, on records set apart, and when they end the run."""

    share: float = Field(0.1, gt=0, lt=1, description="of a silo's training records, scored and never trained on")
    every: int = Field(10, ge=1, description="rounds between scores")
    patience: int = Field(3, ge=1, description="scores in a row that are no better than the best, which end the run")
    min_gain: float = Field(0.0, ge=0, lt=1, description="by how much a score has to beat the best to be better")
    noise_multiplier: float | None = Field(
        None,
        ge=0,
        lt=math.inf,
        description="noise std of a count; left out: the least for which all scores fit epsilon",
    )
    keep: Literal["best", "last"] = Field(
        "best", description="the model that is the result: of the best score, or the last"
    )


class PersonaliseConfig(_Strict):
    """A model of each silo's own, in the end: private steps from the global one, charged as one more round."""

    local_steps: int = Field(ge=1, description="private gradients of each silo")
    local_lr: float = Field(gt=0, lt=math.inf, description="step size")


class CheckpointConfig(_Strict):
    """When the state is saved, besides at the end and when interrupted."""

    every: int | None = Field(None, ge=1, description="rounds between checkpoints")
    seconds: float = Field(
        30.0,
        ge=0,
        description="or seconds between them, more where one takes over a twentieth of that; 0: after every round",
    )


SIZE: Final = r"([0-9]+(?:\.[0-9]+)?) ?((?:[kmgt]i?)?)b?"  # in any case; with i by powers of 1024
ALL_SILOS: Final = 2**31  # of a stack: more than there can be


class RuntimeConfig(_Strict):
    """How it is computed. Results are the same bits for every stack and number of ranks, on the same kind of device and
    threads; but in lockstep."""

    kind: str = Field("auto", description="runtime plugin; auto: mpi if mpirun started several ranks, else in_process")

    dtype: Literal["float32", "float64"] = Field("float32", description="of model, gradients and noise")
    precision: Literal["float32", "bf16", "tf32"] = Field(
        "float32",
        description="of products in forward and backward passes; norms, clipping, sums and noise are in dtype",
    )
    device: str = Field("cpu", description="torch device")
    threads: int = Field(1, ge=1, description="torch threads")
    stack: int | None = Field(
        None, ge=1, description="silos advanced together; default: 1, in lockstep all of a round that a process has"
    )
    lockstep: bool | None = Field(
        None,
        description="a stack's gradients by one set of products, which round by who is in it; default: on CUDA only",
    )
    graphs: bool = Field(
        False,
        description="on CUDA: what a stack's sums take is recorded once as a CUDA graph, and replayed at every step",
    )
    noise: Literal["host", "device"] = Field(
        "host", description="where noise is computed: by numpy, or where the model is; other bits of the same strength"
    )
    memory_budget: str | None = Field(
        None,
        description="of a run, e.g. 8GB or 500 MiB: for records, states, gradients; left out: 80 % of what there is",
    )
    aggregation: Literal["gather", "reduce"] = Field(
        "gather", description="mpi: add uploads in silo order, or by MPI_Reduce, whose bits depend on the ranks"
    )
    silo_timeout: float | None = Field(
        600.0, gt=0, description="mpi: seconds after which a silo rank that owes an answer is given up; null: never"
    )
    server_timeout: float | None = Field(
        600.0, gt=0, description="mpi: seconds after which silo ranks give up a server that says nothing; null: never"
    )
    on_silo_failure: Literal["abort", "continue"] = Field(
        "abort", description="mpi: end the run, or go on without silos whose rank fails (Open MPI 5 with ULFM)"
    )
    min_silos: int = Field(1, ge=1, description="continue: the fewest silos to go on with")
    silo_folder: str | None = Field(
        None,
        description="mpi: for what rank 0 must not have, the silos' key and measurements; default: in the run's folder",
    )

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

    @model_validator(mode="after")
    def _stacks(self) -> RuntimeConfig:
        if self.lockstep and self.stack == 1:
            raise ValueError("lockstep: true with stack: 1: there is nothing to stack; raise stack, or leave it out")
        return self

    @model_validator(mode="after")
    def _graphs(self) -> RuntimeConfig:
        if self.graphs and not self.device.startswith("cuda"):
            raise ValueError(f"graphs: true with device: {self.device}: graphs are CUDA's; leave graphs out")
        if self.graphs and (not self.in_lockstep or self.stack == 1):
            raise ValueError(
                "graphs: true with silos that are answered one by one: a graph is of a whole stack's sums; leave "
                "lockstep and stack out, or graphs"
            )
        return self

    @model_validator(mode="after")
    def _single(self) -> RuntimeConfig:
        if self.on_silo_failure == "continue" and self.aggregation == "reduce":
            raise ValueError(
                "on_silo_failure: continue with aggregation: reduce: a sum that MPI makes ends with the first rank "
                "that dies; use aggregation: gather"
            )
        return self


class Config(_Strict):
    """A run: data, model, algorithm, privacy, and how it is computed."""

    name: str = Field("run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="folder name under out")
    description: str = Field("", description="for readers")
    seed: int = Field(
        0, ge=0, lt=2**63, description="of everything that is drawn; whoever knows it can compute the noise"
    )
    rounds: int | None = Field(None, ge=1, le=10**7, description="T; left out: as many as privacy.epsilon allows")
    silo_rate: float = Field(1.0, gt=0, le=1, description="l, share of silos in a round")
    max_participations: int | None = Field(
        None, ge=1, description="the most rounds that a silo takes part in; the run ends when too few are left"
    )
    silo_weights: Literal["equal", "records"] = Field("equal", description="of each silo in the mean")
    data: DataConfig = DataConfig()
    model: PluginBlock = Field(default=Block(name="softmax"), description="model plugin, or module")
    loss: str = Field("auto", description="auto, cross_entropy, logistic, hinge, or package.module:function")
    l2: float = Field(0.0, ge=0, lt=math.inf, description="lambda of lambda/2 ||y||^2, added after clipping and noise")
    algorithm: PluginBlock = Field(description="algorithm plugin and its options")
    privacy: PrivacyConfig
    engine: str = Field("auto", description="per-example gradient engine")
    evaluation: EvaluationConfig = EvaluationConfig()
    early_stopping: EarlyStoppingConfig | None = Field(None, description="by private validation scores")
    personalise: PersonaliseConfig | None = Field(None, description="a model of each silo's own, charged to the budget")
    checkpoint: CheckpointConfig = CheckpointConfig()
    runtime: RuntimeConfig = RuntimeConfig()
    trackers: list[PluginBlock] = Field(
        default=[], description="what keeps curves and results: tensorboard, mlflow, wandb; nothing of it changes a run"
    )
    out: str = Field("runs", description="folder of run folders")
    access: Access = Field("owner", description="who may read what is written, on this machine: seed and ledger, too")

    @field_validator("algorithm", "privacy", mode="before")
    @classmethod
    def _present(cls, value: Any) -> Any:
        return {} if value is None else value

    @model_validator(mode="after")
    def _ends(self) -> Config:
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
        if self.privacy.epsilon is not None and self.privacy.noise_multiplier == 0:
            raise ValueError(
                "privacy.epsilon with privacy.noise_multiplier: 0: without noise no epsilon holds; leave epsilon out, "
                "or give a noise_multiplier above 0"
            )
        if self.early_stopping is not None:
            self._check_early_stopping(self.early_stopping)
        if self.silo_weights == "records" and self.privacy.sampler == "poisson":
            raise ValueError(
                "silo_weights: records publishes each silo's number of records, which is what add-or-remove "
                "neighbours (sampler: poisson) differ in; use silo_weights: equal, or sampler: fixed"
            )
        return self

    def _check_early_stopping(self, early: EarlyStoppingConfig) -> None:
        if self.rounds is None:
            raise ValueError("early_stopping needs rounds: how many scores there may be is charged in advance")
        if early.every > self.rounds:
            raise ValueError(f"early_stopping.every={early.every} is more than rounds={self.rounds}: no score is made")
        if early.noise_multiplier is None and self.privacy.epsilon is None:
            raise ValueError(
                "early_stopping.noise_multiplier is missing: give it, or privacy.epsilon, for which it is solved"
            )


SWEEP_SETS: Final = ("array", "output", "error", "open-mode", "requeue", "no-requeue", "signal", "job-name", "ntasks")


class When(_Strict):
    """A further grid, for those combinations in which keys have the given values."""

    condition: dict[str, Any] = Field(alias="if", description="key: value, or list of values, of a combination so far")
    grid: dict[str, list[Any]] = Field(description="key.path: list of values")


class SweepConfig(_Strict):
    """Which runs: every entry of ``list`` with every combination of ``grid``, with every seed."""

    grid: dict[str, list[Any]] = Field({}, description="key.path: list of values; all combinations")
    entries: list[dict[str, Any]] = Field(
        [], alias="list", description="changes of the file, one entry for each group of runs"
    )
    when: list[When] = Field([], description="further grids under a condition")
    exclude: list[dict[str, Any]] = Field(
        [], description="combinations to leave out: key.path: value, or list of values"
    )
    seeds: int | list[int] | None = Field(None, description="a list, or their number: 3 is [0, 1, 2]")
    ranks: int | None = Field(None, ge=2, description="MPI ranks of each run; left out: no MPI")
    launcher: str | None = Field(
        None, description="what starts the ranks, e.g. srun --mpi=pmi2 -n {ranks}; words as in a shell"
    )
    slurm: dict[str, str | int | bool] = Field({}, description="options of sbatch: time, partition, gres, ...")
    retry_mem_factor: float | None = Field(
        None, gt=1, description="memory of a task that sacct says ran out of it: times this, each time it is submitted"
    )
    retry_time_factor: float | None = Field(None, gt=1, description="the same for a task that hit its time limit")
    max_requeues: int | None = Field(
        None, ge=0, description="a run that Slurm queued again more often than this counts as failed"
    )
    setup: list[str] = Field([], description="shell lines before a Slurm task begins: module load ...")

    @field_validator("grid")
    @classmethod
    def _values(cls, grid: dict[str, list[Any]]) -> dict[str, list[Any]]:
        for key, values in grid.items():
            if not values:
                raise ValueError(f"{key} has no values: give one at least, or leave it out")
        return grid

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
            if key.lstrip("-") in SWEEP_SETS:
                raise ValueError(f"{key} is set by dpfl sweep itself; leave it out")
        return slurm
