"""Gradient inversion: the records behind a gradient, read off a first layer that is linear and has a bias.

A record x adds r_u x^T to row u of the layer's weight gradient and r_u to entry u of its bias gradient, whatever comes
after the layer. So row / entry is x itself for one record (Phong et al. 2018, sec. III), and for several a mixture of
those that unit u reacts to: of one only, for a ReLU that only one record activates (Boenisch et al. 2023).
Where the layer is all there is and starts at 0, a class's row minus that of a class which no record has gives the mean
of the class's records. Clipping scales a record's gradient and changes none of this; noise does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn

from dpfl_plugin.algorithms.base import RoundPlan
from dpfl_plugin.attacks.transcript import Listener
from dpfl_plugin.core.streams import stream
from dpfl_plugin.errors import UnsupportedError
from dpfl_plugin.federation.planning import Planner
from dpfl_plugin.gradients.base import Records
from dpfl_plugin.oracle import Draw, PrivateOracle
from dpfl_plugin.privacy.clipping import Flat
from dpfl_plugin.privacy.samplers import FullBatch
from dpfl_plugin.runs.build import Parts

SUPPORTED = "softmax, logistic and mlp, with a bias"
_ROUNDING = 1e-6  # of the largest bias gradient: below it there is no unit to divide by


@dataclass(frozen=True, slots=True)
class FirstLayer:
    """Names of a first linear layer's parameters; ``last``: it is the only layer."""

    weight: str
    bias: str
    last: bool


def first_layer(model: nn.Module) -> FirstLayer:
    """The layer that a record's features go into, flattened.

    Raises:
        UnsupportedError: it is not linear, or has no bias.
    """
    named = [(name, module) for name, module in model.named_modules() if not list(module.children())]
    layers = [(name, module) for name, module in named if not isinstance(module, nn.Flatten | nn.Identity)]
    name, module = layers[0] if isinstance(model, nn.Sequential) and layers else ("", model)
    if not isinstance(module, nn.Linear) or module.bias is None:
        what = "has no bias" if isinstance(module, nn.Linear) else f"begins with {type(module).__name__}"
        raise UnsupportedError(
            f"model: it {what}, and gradient inversion reads records off a first layer that is linear. "
            f"It knows {SUPPORTED}."
        )
    prefix = f"{name}." if name else ""
    return FirstLayer(f"{prefix}weight", f"{prefix}bias", last=len(layers) == 1)


def reconstructions(layer: FirstLayer, gradient: Mapping[str, Tensor]) -> Tensor:
    """(k, features): what a gradient, by parameter name, says of the records it is the mean of; k may be 0."""
    rows, entries = gradient[layer.weight].flatten(1).double(), gradient[layer.bias].double()
    if layer.last and len(entries) > 1:
        reference = int(entries.argmax())  # softmax: entries of classes that no record has are positive
        others = torch.arange(len(entries)) != reference
        more = (rows - rows[reference])[others], (entries - entries[reference])[others]
        rows, entries = torch.cat([rows, more[0]]), torch.cat([entries, more[1]])
    known = entries.abs() > _ROUNDING * float(entries.abs().max())
    return rows[known] / entries[known].unsqueeze(1)


def nearest(originals: Tensor, found: Tensor) -> tuple[Tensor, Tensor]:
    """(the reconstruction (b, features) closest to each original (b, features), their correlations (b,)).

    Pearson's correlation over features: 1 for the record up to one offset and one factor of all features, of an image
    brightness and contrast. 0 where nothing was found.
    """
    if not len(found):
        return torch.zeros_like(originals), originals.new_zeros(len(originals))
    correlations = _standardised(originals) @ _standardised(found).t()
    best, index = correlations.max(dim=1)
    return found[index], best


def guessed(originals: Tensor, others: Tensor, count: int) -> Tensor:
    """(b,) the correlation that ``count`` guesses reach with each original, by the best of them, as in `nearest`.

    A guess is one of the records ``others`` (n, features), drawn at random: the expectation of the largest of ``count``
    such correlations, exactly. nan where there are no others.
    """
    n = len(others)
    if not n:
        return torch.full((len(originals),), torch.nan, dtype=originals.dtype)
    ascending = (_standardised(originals) @ _standardised(others).t()).sort(dim=1).values
    places = torch.arange(n + 1, dtype=originals.dtype) / n
    return ascending @ places.pow(max(1, count)).diff()  # the largest is the i-th with this probability


def tells_more(correlations: Tensor, guesses: Tensor) -> bool:
    """Whether correlations (b,) are above what guesses reach by more than chance: twice the standard error."""
    gain = (correlations - guesses).double()
    error = float(gain.std()) / len(gain) ** 0.5 if len(gain) > 1 else 0.0
    return float(gain.mean()) > 2 * error


def _standardised(x: Tensor) -> Tensor:
    centred = x - x.mean(dim=1, keepdim=True)
    lengths: Tensor = centred.norm(dim=1, keepdim=True)
    return centred / lengths.clamp(min=1e-30)


@dataclass(frozen=True, slots=True)
class Inverted:
    """One message's attack.

    Attributes:
        originals: (b, features) the batch.
        found: (b, features) the reconstruction nearest to each of them.
        correlations: (b,) between the two.
        guesses: (b,) the correlations that guessing reaches, with as many guesses as there are reconstructions.
        errors: (b,) ||found - original|| / ||original||.
        control: mean correlation of as many of the silo's other records with the reconstruction nearest to them: what
            records of a silo have in common gives.
    """

    originals: Tensor
    found: Tensor
    correlations: Tensor
    guesses: Tensor
    errors: Tensor
    control: float


def invert(parts: Parts, silo: int, batch: Tensor, seed: int, message: int) -> Inverted:
    """Attack the first message of a round of one local step on the records ``batch`` (b,) of a silo.

    It is noised by ``parts.rules`` and clipped to their C as a whole, whatever the clipping does later;
    ``message`` numbers its random bits.

    Raises:
        UnsupportedError: the model or the algorithm is not known to the attack.
    """
    layer, train = first_layer(parts.module), parts.train[silo]
    gradient = _overheard(parts, silo, train.select(batch), seed, message)
    found = reconstructions(layer, parts.layout.unflatten(gradient)).cpu()
    features = train.features.flatten(1).double().cpu()
    originals = features[batch.cpu()]
    closest, correlations = nearest(originals, found)
    rest = torch.ones(len(features), dtype=torch.bool)
    rest[batch.cpu()] = False
    control = float(nearest(features[rest], found)[1].mean()) if rest.any() else 0.0
    errors = (closest - originals).norm(dim=1) / originals.norm(dim=1).clamp(min=1e-30)
    guesses = guessed(originals, features[rest], len(found))
    return Inverted(originals, closest, correlations, guesses, errors, control)


def _overheard(parts: Parts, silo: int, batch: Records, seed: int, message: int) -> Tensor:
    """(d,) the gradient that the server reads off the upload."""
    algorithm, engine = parts.algorithm, parts.engine
    server = algorithm.init_server(parts.model, parts.setting)
    plan = _one_step(Planner(algorithm, parts.setting, parts.setting.weights, seed).asks(server, 0))
    rules = replace(parts.rules, neighbouring="replace_one", sampler=FullBatch(), clipping=Flat())
    oracle = PrivateOracle(
        rules,
        engine,
        [engine.prepare(batch)],
        [silo],
        Draw(seed, message),
        max_gradients=plan.num_gradients,
    )
    down = algorithm.download(server)
    up, _ = algorithm.local_update(down, algorithm.init_silos(parts.model, 1), oracle, plan)
    return Listener(algorithm, parts.setting, parts.model, rules.l2).hear(0, down, plan, up).mean


def _one_step(plan: RoundPlan) -> RoundPlan:
    return replace(plan, local_steps=1, num_gradients=plan.num_gradients - plan.local_steps + 1)


def batches(num_records: int, seed: int, sizes: Sequence[int]) -> list[Tensor]:
    """Indices of disjoint batches of a silo's records, drawn at random; fewer or smaller ones if records run out."""
    order = torch.from_numpy(stream(seed, "attack").permutation(num_records))
    ends = list(accumulate(sizes, initial=0))
    parts = [order[first:last] for first, last in pairwise(ends)]
    return [part for part in parts if len(part)]
