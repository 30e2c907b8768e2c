"""`python -m benchmarks.engine_choice`: is the engine of least estimated cost the fastest? And does one record add no
more than the clipping norm? Writes the tables in docs/engines.md; processor time, one thread."""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
import warnings
from collections.abc import Callable
from typing import Any, Final

import torch
from opacus.layers import DPGRU, DPLSTM, DPRNN, DPMultiheadAttention
from torch import Tensor, nn

from benchmarks.machine import facts
from benchmarks.pages import put
from benchmarks.table import table
from dpfl_plugin import registry
from dpfl_plugin.core.vectors import Layout
from dpfl_plugin.errors import UnsupportedError
from dpfl_plugin.gradients import losses
from dpfl_plugin.gradients.base import Engine, Records
from dpfl_plugin.gradients.choice import Terms, candidates, made_up
from dpfl_plugin.gradients.precision import Precision
from dpfl_plugin.models.cnn import cnn

CHUNK_BYTES: Final = 2**28
ENGINES: Final = ("closed_form", "dense", "bookkeeping", "opacus", "vmap")


class Recurrent(nn.Module):
    """A recurrent layer over positions, and a score of its last output."""

    def __init__(self, kind: Callable[..., nn.Module], inputs: int, hidden: int) -> None:
        super().__init__()
        self.cells, self.head = kind(inputs, hidden, batch_first=True), nn.Linear(hidden, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cells(x)[0][:, -1])


class Attention(nn.Module):
    """Self-attention over positions, around which the input is added."""

    def __init__(self, kind: Callable[..., nn.Module], inputs: int, width: int) -> None:
        super().__init__()
        self.each, self.mix = nn.Linear(inputs, width), kind(width, 2, batch_first=True)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.each(x)
        return self.head(self.norm(x + self.mix(x, x, x, need_weights=False)[0]).mean(dim=1))


class Words(nn.Module):
    """A table of 1,000 words, a layer at each of them, and their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.each, self.head = nn.Embedding(1000, 32), nn.Linear(32, 64), nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.each(self.table((x.abs() * 100).long() % 1000))).mean(dim=1))


def _mlp(*widths: int, activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Module:
    layers = [part for i, o in itertools.pairwise(widths) for part in (nn.Linear(i, o), activation())]
    return nn.Sequential(nn.Flatten(), *layers[:-1])


Case = tuple[Callable[[], nn.Module], tuple[int, ...], int]
CASES: Final[dict[str, Case]] = {
    "softmax 40 -> 10 (W1)": (lambda: _mlp(40, 10), (40,), 800),
    "softmax 784 -> 47 (W2)": (lambda: _mlp(784, 47), (784,), 400),
    "softmax 40 -> 10, 8 records": (lambda: _mlp(40, 10), (40,), 8),
    "network 60 -> 200 -> 10 (W3)": (lambda: _mlp(60, 200, 10), (60,), 160),
    "network 784 -> 256 -> 256 -> 10": (lambda: _mlp(784, 256, 256, 10), (784,), 64),
    "network with GELU": (lambda: _mlp(100, 50, 10, activation=nn.GELU), (100,), 64),
    "network with PReLU": (lambda: _mlp(100, 50, 10, activation=nn.PReLU), (100,), 64),
    "images 3 x 32 x 32 (W4)": (lambda: cnn((3, 32, 32), 10), (3, 32, 32), 64),
    "images 1 x 28 x 28": (lambda: cnn((1, 28, 28), 10), (1, 28, 28), 16),
    "images 1 x 8 x 8": (lambda: cnn((1, 8, 8), 10), (1, 8, 8), 64),
    "images 1 x 8 x 8, one record": (lambda: cnn((1, 8, 8), 10), (1, 8, 8), 1),
    "convolution in groups": (
        lambda: nn.Sequential(
            *(nn.Conv2d(8, 16, 3, groups=4), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(32 * 144, 10)),
        ),
        (8, 16, 16),
        32,
    ),
    "series, Conv1d": (
        lambda: nn.Sequential(
            *(nn.Conv1d(4, 16, 5), nn.GroupNorm(4, 16), nn.ReLU(), nn.Conv1d(16, 16, 5), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(16 * 56, 5)),
        ),
        (4, 64),
        32,
    ),
    "words, Embedding": (Words, (20,), 64),
    "Linear at 8 positions": (
        lambda: nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128), nn.Flatten(), nn.Linear(1024, 5)),
        (8, 128),
        64,
    ),
    "DPLSTM, 20 positions": (lambda: Recurrent(DPLSTM, 16, 32), (20, 16), 32),
    "DPGRU, 10 positions": (lambda: Recurrent(DPGRU, 16, 64), (10, 16), 64),
    "DPRNN, 4 positions, 4 records": (lambda: Recurrent(DPRNN, 6, 8), (4, 6), 4),
    "nn.LSTM, 20 positions": (lambda: Recurrent(nn.LSTM, 16, 32), (20, 16), 32),
    "DPMultiheadAttention, 20 positions": (lambda: Attention(DPMultiheadAttention, 16, 32), (20, 16), 32),
    "nn.MultiheadAttention, 20 positions": (lambda: Attention(nn.MultiheadAttention, 16, 32), (20, 16), 32),
}


def made(name: str) -> tuple[nn.Module, Tensor, int]:
    """(model, three made-up records, batch size)."""
    make, shape, batch_size = CASES[name]
    torch.manual_seed(0)
    model = make().eval()
    return model, made_up(model, shape, torch.zeros(1)), batch_size


def timed(engine: Engine, y: Tensor, batch: Records, seconds: float) -> float:
    """Microseconds of processor time of a clipped sum, the least of several: what else runs only adds to it."""
    out, times = torch.empty_like(y, dtype=torch.float64), []
    prepared, began = engine.prepare(batch), time.perf_counter()
    engine.clipped_sum(y, prepared, 1.0, out)
    while len(times) < 3 or (time.perf_counter() - began < seconds and len(times) < 50):
        start = time.process_time()
        engine.clipped_sum(y, prepared, 1.0, out)
        times.append(time.process_time() - start)
    return 1e6 * min(times)


def measure(name: str, seconds: float) -> dict[str, dict[str, float]]:
    """{engine: {"estimated", "measured"}} in microseconds, of those that support the model; cheapest estimate first."""
    model, trial, batch_size = made(name)
    y = Layout.of(model).flatten(dict(model.named_parameters()))
    labels = torch.zeros(batch_size, dtype=torch.int64)
    batch = Records(made_up(model, tuple(trial.shape[1:]), torch.zeros(1), batch_size), labels)
    terms = Terms(chunk_bytes=CHUNK_BYTES, batch_size=batch_size)
    found = {}
    for one in candidates(model, losses.cross_entropy, terms, trial):
        if one.engine is not None:
            measured = timed(one.engine, y, batch, seconds)
            found[one.name] = {"estimated": float(one.microseconds or 0.0), "measured": measured}
    return found


def largest(engine: str, precision: Precision, records: int) -> float | None:
    """max over records of ||what one adds|| / C in float32, over models and clipping norms; None if it is refused."""
    most, any_case = 0.0, False
    generator = torch.Generator().manual_seed(1)
    for name in CASES:
        model, trial, _ = made(name)
        kind: Any = registry.load("engines", engine)
        try:
            if precision != "float32" and precision not in getattr(kind, "precisions", ()):
                return None
            if kind.unsupported(model, losses.cross_entropy) is not None:
                continue
            extra = () if precision == "float32" else (precision,)
            made_engine: Engine = kind(model, losses.cross_entropy, CHUNK_BYTES, *extra)
            y = Layout.of(model).flatten(dict(model.named_parameters()))
            out = torch.empty_like(y, dtype=torch.float64)
            for number in range(records):
                scale = 10.0 ** (number % 5 - 2)
                record = Records(scale * torch.randn(1, *trial.shape[1:], generator=generator), torch.tensor([0]))
                prepared = made_engine.prepare(record)
                made_engine.clipped_sum(y, prepared, math.inf, out)
                length = float(out.double().norm())
                for clip_norm in (length / 2, length, length * (1 + 1e-6)):
                    if clip_norm > 0 and math.isfinite(clip_norm):
                        made_engine.clipped_sum(y, prepared, clip_norm, out)
                        most, any_case = max(most, float(out.double().norm()) / clip_norm), True
        except (RuntimeError, UnsupportedError):
            continue  # what a run is told when it tries the engine
    return most if any_case else None


def times_table(found: dict[str, dict[str, dict[str, float]]]) -> str:
    rows = []
    for name, engines in found.items():
        cells = [f"{engines[engine]['measured']:,.0f}" if engine in engines else "" for engine in ENGINES]
        chosen = next(iter(engines))
        loss = engines[chosen]["measured"] / min(value["measured"] for value in engines.values())
        rows.append([name, *cells, chosen, f"{loss:.2f}"])
    return table(["model", *ENGINES, "chosen", "times the fastest"], rows)


def text(found: dict[str, dict[str, dict[str, float]]], clip: dict[str, dict[str, float | None]]) -> str:
    ratios = []
    for engines in found.values():
        best = min(value["measured"] for value in engines.values())
        ratios.append(engines[next(iter(engines))]["measured"] / best)
    hits, worst = sum(ratio == 1.0 for ratio in ratios), max(ratios)
    others = "" if hits == len(ratios) else f"; for the others it took at most {worst:.2f} times as long"
    rows = []
    for engine, by in clip.items():
        rows.append([engine, *("refused" if value is None else f"1 - {1 - value:.1e}" for value in by.values())])
    where = facts()
    return "\n\n".join(
        [
            f"Processor time in microseconds, one thread, {where['processor']}, torch {where['torch']}, "
            f"{where['date']}. The choice was the fastest engine for {hits} of {len(ratios)} models{others}. The rates "
            "of the cost model were set with most of these models in view.",
            times_table(found),
            "Largest norm of what one record added, over C, among records that have to be clipped and such as are just "
            "at the bound (float32 numbers, `runtime.precision` by column):",
            table(["engine", *next(iter(clip.values()))], rows),
        ]
    )


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine_choice", description="Is the choice the best?")
    parser.add_argument("--json", action="store_true", help="print the numbers, write nothing")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each engine and model")
    parser.add_argument("--records", type=int, default=15, help="of each model, whose contribution is measured")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "There is a performance drop")
    found = {name: measure(name, arguments.seconds) for name in CASES}
    precisions: tuple[Precision, ...] = ("float32", "bf16")
    clip = {engine: {p: largest(engine, p, arguments.records) for p in precisions} for engine in ENGINES}
    if arguments.json:
        print(json.dumps({"engines": found, "largest_contribution": clip}, indent=2))
    else:
        put("docs/engines.md", "engine tables", text(found, clip))


if __name__ == "__main__":
    main()
