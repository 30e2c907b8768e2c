"""Models and losses that mix the records of a batch are refused, whatever hides it at the parameters at the start."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional

from dpfl_plugin.core.streams import PURPOSES
from dpfl_plugin.core.vectors import Layout
from dpfl_plugin.errors import UnsupportedError
from dpfl_plugin.gradients import independence, losses
from dpfl_plugin.gradients.base import Records
from dpfl_plugin.gradients.bookkeeping import BookKeeping
from dpfl_plugin.gradients.choice import Terms, candidates, choose, made_up
from dpfl_plugin.models.cnn import cnn
from dpfl_plugin.models.linear import logistic, softmax
from dpfl_plugin.models.mlp import mlp

TERMS = Terms(chunk_bytes=2**20)
MODELS = {
    "softmax": lambda k: (softmax((6,), k), (6,)),
    "mlp": lambda k: (mlp((6,), k, hidden=(5,)), (6,)),
    "cnn": lambda k: (cnn((1, 8, 8), k, channels=(4, 8), hidden=5), (1, 8, 8)),
}


def tried(model, shape, loss, engine="auto", terms=TERMS):
    return choose(engine, model, loss, terms, made_up(model, shape, torch.zeros(1)))[0]


# Losses


def each(outputs, labels):
    return functional.cross_entropy(outputs, labels, reduction="none")


def balanced(outputs, labels):
    """Classes weighted by how rare they are in the batch: constant where all labels are alike."""
    classes = outputs.shape[1]
    return each(outputs, labels) * (len(labels) / (classes * torch.bincount(labels, minlength=classes)[labels]))


def counted(outputs, labels):
    return each(outputs, labels) / torch.bincount(labels, minlength=outputs.shape[1])[labels]


def times_the_mean(outputs, labels):
    return each(outputs, labels) * each(outputs, labels).mean()


def times_the_mean_detached(outputs, labels):
    return each(outputs, labels) * each(outputs, labels).mean().detach()


def over_the_largest(outputs, labels):
    found = each(outputs, labels)
    return found / found.max().detach().clamp(min=1e-6)


def hardest(outputs, labels):
    found = each(outputs, labels)
    return found * (found >= found.median())


def hardest_32(outputs, labels):
    """All records of a small batch."""
    found = each(outputs, labels)
    return found * (found >= found.topk(min(32, len(found))).values[-1])


def softmax_over_the_batch(outputs, labels):
    found = each(outputs, labels)
    return found * torch.softmax(found, 0)


def by_size(outputs, labels):
    return each(outputs, labels) / len(labels)


def by_place(outputs, labels):
    return each(outputs, labels) * (1 + torch.arange(len(labels)))


def minority(outputs, labels):
    """The rarer half of the batch weighs more, if there are two classes at all."""
    share = (labels == 0).to(outputs).mean()
    return each(outputs, labels) * torch.where(labels == 0, 1 + (share < 0.3), 1.0)


def slopes_alone(outputs, labels):
    """Values are those of each record; derivatives are not."""
    found = each(outputs, labels)
    return found + (found - found.detach()) * (found.detach().mean() - found.detach())


class Running:
    """Keeps what it has seen."""

    def __init__(self) -> None:
        self.mean = torch.tensor(1.0)

    def __call__(self, outputs, labels):
        found = each(outputs, labels)
        self.mean = 0.9 * self.mean + 0.1 * found.detach().mean()
        return found / self.mean


MIXING = [
    balanced,
    counted,
    times_the_mean,
    times_the_mean_detached,
    over_the_largest,
    hardest,
    hardest_32,
    softmax_over_the_batch,
    by_size,
    by_place,
    minority,
    slopes_alone,
]


@pytest.mark.parametrize("classes", [2, 10])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("loss", [*MIXING, Running()], ids=lambda loss: getattr(loss, "__name__", "running"))
def test_a_loss_that_mixes_records_is_refused(loss, model, classes):
    with pytest.raises(UnsupportedError, match=r"depends on the other records .*reduction='none'"):
        tried(*MODELS[model](classes), loss)


@pytest.mark.parametrize("engine", ["closed_form", "dense", "bookkeeping", "opacus", "vmap"])
def test_by_every_engine_and_wherever_engines_are_listed(engine):
    with pytest.raises(UnsupportedError, match="depends on the other records"):
        tried(*MODELS["softmax"](3), balanced, engine)
    model, shape = MODELS["softmax"](3)
    with pytest.raises(UnsupportedError, match="depends on the other records"):
        candidates(model, balanced, TERMS, made_up(model, shape, torch.zeros(1)))


def test_what_is_refused_is_a_hole():
    """One record's label changes the clipped sum by more than 2 C, by which noise would be scaled."""
    model, count = nn.Linear(4, 2, bias=False), 44
    y = torch.zeros(8)
    engine, x, labels = BookKeeping(model, balanced, 2**20), torch.zeros(count, 4), torch.zeros(count).long()
    x[1:11, 0], labels[1:11], x[0, 0] = 0.2, 1, -10.0
    sums = []
    for label in (0, 1):
        labels[0] = label
        out = torch.empty_like(y, dtype=torch.float64)
        engine.clipped_sum(y, Records(x, labels.clone()), 1.0, out)
        sums.append(out)
    assert float((sums[0] - sums[1]).norm()) > 2.1


def weighted(outputs, labels):
    """Weights of classes, fixed ahead; of one number format only."""
    return functional.cross_entropy(outputs, labels, torch.arange(1.0, 1 + outputs.shape[1]), reduction="none")


def smoothed(outputs, labels):
    return functional.cross_entropy(outputs, labels, reduction="none", label_smoothing=0.1)


def focal(outputs, labels):
    found = each(outputs, labels)
    return (1 - torch.exp(-found)) ** 2 * found


def squared(outputs, labels):
    return (outputs - functional.one_hot(labels, outputs.shape[1])).square().sum(dim=1)


def margins(outputs, labels):
    return functional.multi_margin_loss(outputs, labels, reduction="none")


def two_classes_only(outputs, labels):
    assert labels.max() < 2
    return functional.binary_cross_entropy_with_logits(outputs[:, 0], labels.to(outputs), reduction="none")


def in_half(outputs, labels):
    return functional.cross_entropy(outputs.float(), labels, reduction="none")


def bits(outputs, labels):
    """Several labels at once, as the bits of one number."""
    wanted = labels.unsqueeze(1).bitwise_right_shift(torch.arange(outputs.shape[1])) & 1
    return functional.binary_cross_entropy_with_logits(outputs, wanted.to(outputs), reduction="none").sum(dim=1)


@pytest.mark.parametrize("classes", [2, 10, 40])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "loss", [losses.cross_entropy, weighted, smoothed, focal, squared, margins, two_classes_only, in_half, bits]
)
def test_a_loss_of_each_record_is_accepted(loss, model, classes):
    assert tried(*MODELS[model](classes), loss)


def distance(outputs, labels):
    """Of labels that are numbers."""
    return functional.huber_loss(outputs.flatten(), labels.to(outputs), reduction="none")


@pytest.mark.parametrize("loss", [losses.logistic, losses.hinge, distance])
@pytest.mark.parametrize("flat", [False, True])
def test_losses_of_one_output_are_accepted(loss, flat):
    model = nn.Sequential(logistic((6,), 2), nn.Flatten(0)) if flat else logistic((6,), 2)
    assert tried(model, (6,), loss)


def test_the_built_in_losses_are_those_of_each_record_by_construction():
    """For any outputs and labels: each row of the Jacobian by outputs has its own record's alone, and is as alone."""
    generator = torch.Generator().manual_seed(3)
    for name, loss in losses.LOSSES.items():
        width = 5 if name == "cross_entropy" else 1
        outputs = 3 * torch.randn(7, width, dtype=torch.float64, generator=generator)
        labels = torch.randint(0, max(2, width), (7,), generator=generator)
        whole = torch.autograd.functional.jacobian(lambda o: loss(o, labels), outputs)  # noqa: B023
        for j, i in itertools.product(range(7), range(7)):
            alone = torch.autograd.functional.jacobian(lambda o: loss(o, labels[j : j + 1]), outputs[j : j + 1])  # noqa: B023
            torch.testing.assert_close(whole[j, i], alone[0, 0] if i == j else torch.zeros(width).double())


# Models


class Mixes(nn.Module):
    """A linear layer, and what ``mix`` does to its inputs; ``gate`` starts at 0."""

    def __init__(self, mix, shape, classes) -> None:
        super().__init__()
        self.mix, self.gate = mix, nn.Parameter(torch.zeros(1))
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(int(torch.tensor(shape).prod()), classes))

    def forward(self, x):
        return self.body(self.mix(x, self.gate))


def centred(x, gate):
    return x - x.mean(dim=0)


def centred_detached(x, gate):
    return x - x.mean(dim=0).detach()


def batch_norm(x, gate):
    return functional.batch_norm(x, None, None, training=True) if len(x) > 1 else x


def gated(x, gate):
    return x + gate * (x - x.mean(dim=0))


def over_positions(x, gate):
    """A softmax over records that was meant to be over features."""
    return torch.softmax(x, dim=0)


def place(x, gate):
    return x * (1 + torch.arange(len(x)).view(-1, *[1] * (x.dim() - 1)))


def neighbour(x, gate):
    return x + x.roll(1, 0)


def in_usual_batches(x, gate):
    """As batch statistics that are left out where there are few records."""
    return x - x.mean(dim=0) if len(x) > 16 else x


def of_pixels(x, gate):
    """Up to 255 or up to 1, as the batch says."""
    return x / 255 if float(x.max()) > 50 else x


def slope_of_others(x, gate):
    """Outputs are as if alone; derivatives by the parameter are not."""
    return x + (gate - gate.detach()) * x.mean(dim=0)


@pytest.mark.parametrize("shape", [(6,), (1, 8, 8)], ids=["flat", "image"])
@pytest.mark.parametrize(
    "mix",
    [
        centred,
        centred_detached,
        batch_norm,
        gated,
        over_positions,
        place,
        neighbour,
        in_usual_batches,
        of_pixels,
        slope_of_others,
    ],
)
@pytest.mark.parametrize("engine", ["auto", "bookkeeping", "opacus", "vmap"])
def test_a_model_that_mixes_records_is_refused(mix, shape, engine):
    with pytest.raises(UnsupportedError, match=r"the model mixes the records of a batch.*nn\.GroupNorm"):
        tried(Mixes(mix, shape, 3), shape, losses.cross_entropy, engine)


HIDDEN = {
    "softmax": lambda: nn.Sequential(nn.Softmax(dim=0), nn.Hardtanh(0.0, 1e-3)),
    "attention": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 6)), nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0), nn.Flatten()
    ),
}


@pytest.mark.parametrize("layers", HIDDEN.values(), ids=HIDDEN)
def test_a_layer_that_made_up_records_do_not_reach_is_tried_by_itself(layers):
    """Numbers below 10,000 become 0, and of zeros alone nothing shows."""
    model = nn.Sequential(nn.Hardshrink(1e4), layers(), nn.Linear(6, 3))
    with pytest.raises(UnsupportedError, match=r"the model mixes the records of a batch.*that mixes them"):
        tried(model, (6,), losses.cross_entropy)
    assert not any(layer._forward_pre_hooks for layer in model.modules())


def test_layers_that_are_given_positions_first_are_not_taken_for_mixing():
    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.softmax, self.last = nn.Linear(2, 4), nn.Softmax(dim=0), nn.Linear(4, 3)
            self.encode = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0)

        def forward(self, x):
            found = self.encode(self.embed(x).transpose(0, 1))  # (positions, records, 4)
            return self.last((self.softmax(found) * found).sum(dim=0))

    for positions in (independence.ALONE, independence.RECORDS, 5):
        assert tried(Positions(), (positions, 2), losses.cross_entropy).name == "vmap"


class Shifts(nn.Module):
    """Adds something of the batch to outputs, which no derivative by a parameter shows."""

    def __init__(self, shift) -> None:
        super().__init__()
        self.shift, self.body = shift, nn.Linear(6, 3)

    def forward(self, x):
        return self.body(x) + self.shift(x)


@pytest.mark.parametrize(
    "shift",
    [
        lambda x: x.mean(dim=0)[:3],
        lambda x: x.mean(dim=0)[:3] if len(x) > 4 else 0.0,
        lambda x: torch.arange(len(x)).unsqueeze(1) // 4,
    ],
    ids=["mean", "mean of many", "late places"],
)
def test_outputs_that_depend_on_other_records_are_seen_by_themselves(shift):
    with pytest.raises(UnsupportedError, match="the model mixes the records of a batch"):
        tried(Shifts(shift), (6,), losses.cross_entropy)


def standardised(x, gate):
    return functional.layer_norm(x, x.shape[1:])


def of_one_scale(x, gate):
    return torch.where(x.abs() < 20, x, torch.nan)


def in_float32(x, gate):
    return x + (gate * torch.ones(2, 2) @ torch.ones(2, 2, dtype=torch.float32)).sum()  # products of one format only


@pytest.mark.parametrize("mix", [standardised, of_one_scale, in_float32])
def test_a_model_of_each_record_is_accepted(mix):
    assert tried(Mixes(mix, (6,), 3), (6,), losses.cross_entropy)


# What is not finite, or fails


def logarithm(outputs, labels):
    return torch.log(-outputs.abs().sum(dim=1) - 1)


def root(outputs, labels):
    """At outputs of 0 its derivative is not finite."""
    return outputs.square().sum(dim=1).sqrt()


@pytest.mark.parametrize(("loss", "what"), [(logarithm, "it is nan"), (root, "its derivative by the model's outputs")])
def test_a_loss_that_is_not_finite_is_said_to_be_that(loss, what):
    with pytest.raises(UnsupportedError, match=rf"the loss is not finite on made-up records \({what}"):
        tried(*MODELS["softmax"](3), loss)


def test_a_model_that_is_not_finite_or_a_loss_that_fails():
    with pytest.raises(UnsupportedError, match="not finite on made-up records, at the parameters"):
        tried(Mixes(lambda x, gate: x / gate, (6,), 3), (6,), losses.cross_entropy)
    with pytest.raises(UnsupportedError, match="not finite on made-up records, near the parameters"):
        tried(Mixes(lambda x, gate: x / (gate == 0), (6,), 3), (6,), losses.cross_entropy)
    with pytest.raises(UnsupportedError, match="gradient is not finite on made-up records"):
        tried(Mixes(lambda x, gate: x + (gate * gate).sqrt(), (6,), 3), (6,), losses.cross_entropy)

    def broken(outputs, labels):
        raise KeyError("age")

    with pytest.raises(
        UnsupportedError, match=r"fails on made-up records: KeyError: 'age' \(.*test_independence\.py, l"
    ):
        tried(*MODELS["softmax"](3), broken)


# The trial itself


def test_a_trial_repeats_itself_and_leaves_everything_as_it_was():
    """Random parameters are of a stream of their own; the model's are neither changed nor given gradients."""
    model, shape = MODELS["mlp"](10)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    seen = [[], []]
    for calls in seen:
        state = torch.get_rng_state()

        def recorded(outputs, labels, calls=calls):
            calls.append((outputs.detach().clone(), labels.clone()))
            return losses.cross_entropy(outputs, labels)

        independence.check(model, recorded, made_up(model, shape, torch.zeros(1), independence.RECORDS), 64)
        assert torch.equal(torch.get_rng_state(), state)
    assert len(seen[0]) == len(seen[1])
    for (a, labels), (b, same) in zip(*seen, strict=True):
        assert torch.equal(a, b) and torch.equal(labels, same)
    assert all(torch.equal(value, before[name]) and value.grad is None for name, value in model.named_parameters())
    sizes = {len(labels) for _, labels in seen[0]}
    assert {1, 3, 8, 64} <= sizes
    assert set(torch.cat([labels for _, labels in seen[0]]).tolist()) == set(range(10))
    assert "trial" in PURPOSES


def test_classes_that_a_loss_does_not_take_are_left_out():
    model, shape = MODELS["softmax"](10)
    features = made_up(model, shape, torch.zeros(1), independence.RECORDS)
    assert independence.check(model, two_classes_only, features, 8).tolist() == [0, 1]
    assert independence.check(model, losses.cross_entropy, features, 8).tolist() == list(range(10))
    model, _ = MODELS["softmax"](500)
    assert independence.check(model, losses.cross_entropy, features, 8).tolist() == [*range(15), 499]
    assert Layout.of(model).dimension == 3500
