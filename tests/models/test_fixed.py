"""What of a model does not train: carried as bytes, compared by a digest, and saved with the rest."""

import copy
import warnings

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from torch import nn

from dpfl_plugin.core.vectors import Layout
from dpfl_plugin.errors import UnsupportedError
from dpfl_plugin.models.fixed import fixed_digest, fixed_tensors, pack, state_before, structure, unpack, whole_state

KINDS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


class Many(nn.Module):
    def __init__(self, seed):
        super().__init__()
        rng = torch.Generator().manual_seed(seed)
        self.frozen, self.head = nn.Linear(4, 4), nn.Linear(4, 2)
        self.tied = self.frozen  # under two names
        for number, kind in enumerate(KINDS):
            values = torch.randint(0, 2 if kind == torch.bool else 9, (3, number + 1), generator=rng).to(kind)
            self.register_buffer(f"buffer{number}", values, persistent=number % 2 == 0)
        self.register_buffer("one", torch.tensor(seed))
        self.register_buffer("empty", torch.zeros(0, 3))
        self.register_buffer("transposed", torch.rand(3, 5, generator=rng).t())
        self.register_buffer("nan", torch.tensor([float("nan"), float("-inf")]))
        self.frozen.requires_grad_(False)
        with torch.no_grad():
            self.frozen.weight.copy_(torch.randn(4, 4, generator=rng))

    def forward(self, x):
        return self.head(torch.tanh(self.frozen(x)) + self.one)


def test_bytes_make_a_model_that_is_built_alike_the_same_function():
    one, other = Many(1), Many(2)
    assert structure(one) == structure(other) and fixed_digest(one) != fixed_digest(other)
    head = copy.deepcopy(other.head.state_dict())
    unpack(pack(one), other)
    assert fixed_digest(one) == fixed_digest(other)
    for name, value in fixed_tensors(one).items():
        found = fixed_tensors(other)[name]
        assert found.dtype == value.dtype and found.shape == value.shape
        assert torch.equal(found.nan_to_num(), value.nan_to_num()), name
    for name, value in head.items():
        assert torch.equal(value, other.head.state_dict()[name]), "what trains is left"
    unpack(pack(other), other)


def test_every_bit_of_what_does_not_train_counts():
    for name in fixed_tensors(Many(1)):
        model = Many(1)
        value = fixed_tensors(model)[name]
        if value.numel():
            first = (0,) * value.dim()
            value[first] = ~value[first] if value.dtype == torch.bool else value[first].nan_to_num() + 1
            assert fixed_digest(model) != fixed_digest(Many(1)), name


def test_what_is_saved_loads_strictly_and_predicts_the_same():
    model, x = Many(3), torch.randn(7, 4)
    vector = torch.linspace(-1, 1, Layout.of(model).dimension)
    kept = copy.deepcopy(model.state_dict())
    whole, left_out = whole_state(model, vector, state_before(model))
    assert not left_out
    state = load(save(whole))
    net = Many(3)
    net.load_state_dict(state)
    assert torch.equal(Layout.of(net).flatten(dict(net.named_parameters())), vector)
    parameters = Layout.of(model).unflatten(vector)
    assert torch.equal(net(x), torch.func.functional_call(model, parameters, (x,)))
    for name, value in kept.items():
        assert torch.equal(model.state_dict()[name].nan_to_num(), value.nan_to_num()), "the run's own model is left"


def test_what_a_models_own_code_put_there_is_not_saved():
    """A buffer that changed, an entry that came, by a hook or of a layer; not the name that one gives what trains."""
    records = torch.randn(5, 4)

    def hook(module, state, prefix, metadata):
        state[f"{prefix}renamed"] = state.pop(f"{prefix}weight")
        if seen:
            state |= {f"{prefix}seen{number}": torch.cat(seen) for number in range(7)}  # their number says 7

    class Layer(nn.Linear):
        def get_extra_state(self):
            return torch.cat(seen) if seen else torch.zeros(1)

    seen, model = [], nn.Sequential(Layer(4, 3), nn.BatchNorm1d(3).eval())
    model[0].register_state_dict_post_hook(hook)
    before, vector = state_before(model), torch.randn(Layout.of(model).dimension)
    assert whole_state(model, vector, before)[1] == []
    seen.append(records)
    model[1].running_mean[0] = records[0, 0]
    state, left_out = whole_state(model, vector, before)
    assert left_out == ["0._extra_state", "1.running_mean", "an entry that came later"]
    assert torch.equal(state["0.renamed"], vector[:12].view(3, 4))
    assert set(state) == {"0.renamed", "0.bias", "1.weight", "1.bias"}, (
        "which of the others are there would tell of records, too"
    )


def test_a_shape_or_a_type_that_code_gave_an_entry_is_not_saved():
    """Of a tensor without elements any sizes have the same bytes; so have a parameter's in another shape."""
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2))
    model.register_buffer("empty", torch.zeros(0, 3))
    model.register_buffer("zeros", torch.zeros(2))
    before, vector = state_before(model), torch.randn(Layout.of(model).dimension)
    assert whole_state(model, vector, before)[1] == []
    model.empty, model.zeros = torch.zeros(0, 5318008), torch.zeros(1, dtype=torch.int64)
    model[0].weight.data = model[0].weight.data.reshape(2, 12)
    state, left_out = whole_state(model, vector, before)
    assert left_out == ["empty", "zeros"]
    assert set(state) == {"0.weight", "0.bias", "1.weight", "1.bias"} and state["0.weight"].shape == (6, 4)


@pytest.mark.parametrize("bits", range(6))
def test_nothing_of_records_is_in_which_entries_a_models_file_has_or_under_which_name(bits):
    """Code takes one out, gives one's name to another that trains or to one that does not, or turns their order."""

    class Coded(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.bits = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False), 0
            self.register_buffer("kept", torch.zeros(3, 3))

        def state_dict(self, *given, **named):
            state = super().state_dict(*given, **named)
            match self.bits:
                case 1:
                    state["a.weight"], state["b.weight"] = state["b.weight"], state["a.weight"]
                case 2:
                    del state["kept"]
                case 3:
                    state["kept"] = state["a.weight"]
                case 4:
                    del state["b.weight"]
                case 5:
                    state = dict(reversed(state.items()))
            return state

    model, vector = Coded(), torch.randn(18)
    before = state_before(model)
    model.bits = bits
    state, changed = whole_state(model, vector, before)
    expected = {"a.weight": vector[:9].view(3, 3), "b.weight": vector[9:].view(3, 3), "kept": torch.zeros(3, 3)}
    assert list(state) == [name for name in before.entries if name != "kept" or not changed]
    assert all(torch.equal(value, expected[name]) for name, value in state.items())
    assert bool(changed) == (bits in (2, 3)), "what trains is written without asking the model's code"


def test_what_a_models_own_code_makes_of_what_trains_is_left_out_and_nothing_else():
    """Turned around, halved, or a norm of it, all from zero; a frozen layer, buffers and a parameter of a view stay."""

    class Making(nn.Module):
        def __init__(self):
            super().__init__()
            self.turned, self.plain = nn.Parameter(torch.zeros(3, 3)), nn.Parameter(torch.zeros(3, 3))
            self.expanded, self.none = nn.Parameter(torch.zeros(1).expand(2)), nn.Parameter(torch.zeros(0, 2))
            self.small = nn.Parameter(torch.zeros(2))
            self.frozen = nn.Parameter(torch.zeros(3, 3), requires_grad=False)
            self.register_buffer("kept", torch.zeros(3, 3))

        def state_dict(self, *given, **named):
            state = super().state_dict(*given, **named)
            made = {"turned": state["turned"].t(), "small": state["small"].half(), "norm": state["plain"].norm()}
            return {**state, **made}

    model = Making()
    before, vector = state_before(model), torch.arange(22.0)
    state, changed = whole_state(model, vector, before)
    assert not changed and set(before.derived) == {"turned", "small", "norm"}
    assert set(state) == {"plain", "expanded", "none", "frozen", "kept"}
    assert torch.equal(state["plain"], vector[9:18].view(3, 3)) and torch.equal(state["expanded"], vector[18:20])
    assert not any(value.any() for value in model.state_dict().values()), "the model itself is left as it is"


def test_a_model_that_cannot_be_copied_or_fails_later_has_what_trains_in_its_file(tmp_path):
    """Its weights may be in a file that nobody may write to."""
    np.save(tmp_path / "weights.npy", np.ones((3, 2), np.float32))

    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("kept", torch.zeros(3))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that it is not to be written to
                self.weight = nn.Parameter(torch.from_numpy(np.load(tmp_path / "weights.npy", mmap_mode="r")))

        def state_dict(self, *given, **named):
            assert not failing
            return super().state_dict(*given, **named)

    class Single(Odd):
        def __init__(self):
            super().__init__()
            self.like, self.too = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))

        def __deepcopy__(self, memo):
            raise TypeError("there is one only")

    class Itself(Single):
        def __deepcopy__(self, memo):
            return self

    for kind in (Odd, Single, Itself):
        failing = []
        model = kind()
        start = Layout.of(model).flatten(dict(model.named_parameters()))
        before, vector = state_before(model), torch.arange(1.0, 1 + Layout.of(model).dimension)
        trained = Layout.of(model).unflatten(vector)
        state, changed = whole_state(model, vector, before)
        assert torch.equal(Layout.of(model).flatten(dict(model.named_parameters())), start), "the model is left alone"
        assert not changed and set(state) == {*trained, "kept"}
        assert all(torch.equal(state[name], value) for name, value in trained.items())
        failing.append(1)
        state, changed = whole_state(model, vector, before)
        assert changed == ["kept"] and set(state) == {*trained}
        assert all(torch.equal(state[name], value) for name, value in trained.items())


def test_what_is_no_plain_tensor_is_refused():
    model = nn.Linear(3, 2)
    model.register_buffer("sparse", torch.eye(3).to_sparse())
    with pytest.raises(UnsupportedError, match="the model's sparse does not train, and is not a plain tensor"):
        pack(model)


def test_how_a_model_is_built_is_seen_and_where_it_lies_in_memory_is_not():
    class Activation(nn.Module):
        def __init__(self, function):
            super().__init__()
            self.function, self.constants = function, [torch.ones(2), (torch.zeros(1).numpy(),)]

        def extra_repr(self):
            return repr(self.function)

        def forward(self, x):
            return self.function(x)

    made = lambda: nn.Sequential(nn.Linear(3, 2), Activation(lambda x: x))  # noqa: E731
    assert structure(made()) == structure(made())
    other = made()
    other[1].constants[1][0][0] = 1
    assert structure(other) != structure(made())
    frozen = made()
    frozen[0].bias.requires_grad_(False)
    assert structure(frozen) != structure(made())
