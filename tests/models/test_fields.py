"""Records of several inputs: rows hold them to the bit, and a wrapped model computes what the model computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

import dpfl_plugin as dpfl
from dpfl_plugin.adapters.loaders import check_apart
from dpfl_plugin.adapters.records import all_records
from dpfl_plugin.core.vectors import Layout
from dpfl_plugin.errors import ConfigError, DataError, PluginError
from dpfl_plugin.gradients import independence
from dpfl_plugin.gradients.base import Records
from dpfl_plugin.gradients.losses import cross_entropy
from dpfl_plugin.gradients.vmap import Vmap
from dpfl_plugin.models.build import check_model
from dpfl_plugin.models.fields import EXACT, WIDTH, Field, Fields, FieldsModel

WORDS, LENGTH = 50, 6
FIELDS = Fields(input_ids=Field((LENGTH,), below=WORDS), attention_mask=Field((LENGTH,), below=2), age=Field())


class Lora(nn.Module):
    """W x + B A x with a frozen W (Hu et al. 2021, arXiv:2106.09685v2, Section 4.1); B starts at 0."""

    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Linear(base.in_features, rank, bias=False)
        self.b = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x) + self.b(self.a(x))
        return out


class Reader(nn.Module):
    """As those of transformers: inputs by name, an object with logits out."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(9, 3)

    def forward(self, *, input_ids: Tensor, attention_mask: Tensor, age: Tensor) -> SimpleNamespace:
        x = self.words(input_ids)
        mask = attention_mask.to(x).unsqueeze(-1)
        x = self.norm(x + torch.tanh(self.attention.out_proj(x))) * mask
        pooled = x.sum(1) / mask.sum(1).clamp(min=1)
        return SimpleNamespace(logits=self.head(torch.cat([pooled, age.unsqueeze(1)], dim=1)))


def record(seed: int) -> dict[str, Any]:
    rng = torch.Generator().manual_seed(seed)
    return {
        "input_ids": torch.randint(WORDS, (LENGTH,), generator=rng),
        "attention_mask": torch.randint(2, (LENGTH,), generator=rng),
        "age": torch.randn((), generator=rng),
        "label": seed % 3,
    }


class Texts(Dataset[Any]):
    """Items as mappings, tuples or pairs."""

    def __init__(self, count: int, form: str = "mapping", first: int = 0) -> None:
        self.items = [record(first + seed) for seed in range(count)]
        self.form = form

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        *inputs, label = self.items[index].items()
        match self.form:
            case "tuple":
                return (*(value for _, value in inputs), label[1])
            case "pair":
                return dict(inputs), label[1]
            case "tuple in a pair":
                return tuple(value for _, value in inputs), label[1]
        return self.items[index]


def reader() -> Reader:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return Reader()


def test_rows_hold_all_inputs_to_the_bit() -> None:
    """unpack is the inverse of pack, up to the largest whole number that float32 holds."""
    fields = Fields(large=Field((2, 3), below=EXACT), real=Field((2,)))
    large = torch.tensor([[0, 1, EXACT - 1], [EXACT - 2, 77, 2**23 + 1]])
    real = torch.tensor([0.1, -1e30])
    found = fields.unpack(fields.pack({"real": real, "large": large}).unsqueeze(0))
    assert fields.width == 8 and found["large"].dtype == torch.int64
    assert torch.equal(found["large"][0], large) and torch.equal(found["real"][0], real)


@pytest.mark.parametrize("form", ["mapping", "tuple", "pair", "tuple in a pair"])
def test_every_form_of_a_record_is_the_same_row(form: str) -> None:
    x, y = all_records(FIELDS.dataset(Texts(5, form)))
    inputs = [{key: value for key, value in record(i).items() if key != "label"} for i in range(5)]
    assert torch.equal(x, torch.stack([FIELDS.pack(one) for one in inputs]))
    assert y.tolist() == [0, 1, 2, 0, 1]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"input_ids": torch.full((LENGTH,), WORDS)}, f"record 0: input_ids has the value {WORDS}, .*a larger below"),
        ({"input_ids": torch.zeros(LENGTH + 1)}, r"input_ids has shape \(7,\)"),
        ({"attention_mask": torch.full((LENGTH,), 0.5)}, "attention_mask has the value 0.5"),
        ({"token_type_ids": torch.zeros(LENGTH)}, "Declare a Field for each input"),
        ({"labels": 1}, "which is the label is not clear"),
        ({"age": "old"}, "age is a str"),
    ],
)
def test_a_record_that_does_not_fit_is_told(changed: dict[str, Any], said: str) -> None:
    data = Texts(2)
    data.items[0] |= changed
    with pytest.raises(DataError, match=said):
        FIELDS.dataset(data)[0]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Field((3,), below=EXACT + 1), "below=16777217"),
        (lambda: Field((0,)), "shape="),
        (lambda: Fields(), "one input at least"),
        (lambda: Fields(a=3), "a=3"),  # type: ignore[arg-type]
        (lambda: FIELDS.dataset(DataLoader(Texts(2))), "DataLoader"),
        (lambda: dpfl.Federation.from_datasets({"a": Texts(2)}, fields=FIELDS, preprocess=["unit_norm"]), "preprocess"),
    ],
)
def test_what_is_not_a_field_is_refused(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make()


def test_one_record_at_two_silos_is_seen_through_the_fields() -> None:
    data = Texts(4)
    with pytest.raises(DataError, match="in common"):
        check_apart({0: FIELDS.dataset(Subset(data, [0, 1])), 1: FIELDS.dataset(ConcatDataset([Subset(data, [1, 2])]))})


def test_a_wrapped_model_has_the_models_own_gradients() -> None:
    """Of each record, by autograd through the model called as its author calls it."""
    own = reader()
    model = FieldsModel(own, FIELDS, output="logits")
    check_model(model, (FIELDS.width,))
    independence.check(model, cross_entropy, torch.randn(independence.RECORDS, FIELDS.width), 4)
    x, y = all_records(FIELDS.dataset(Texts(5)))
    layout = Layout.of(model)
    total = torch.zeros(layout.dimension, dtype=torch.float64)
    vector = layout.flatten(dict(model.named_parameters()))
    Vmap(model, cross_entropy, 2**24).clipped_sum(vector, Records(x, y), 0.5, total)
    expected = torch.zeros_like(total)
    trained = [p for p in own.parameters() if p.requires_grad]
    for seed in range(5):
        inputs = {key: torch.as_tensor(value).unsqueeze(0) for key, value in record(seed).items() if key != "label"}
        loss = cross_entropy(own(**inputs).logits, y[seed : seed + 1]).sum()
        slopes = torch.autograd.grad(loss, trained, allow_unused=True)
        flat = torch.cat(
            [torch.zeros_like(p).flatten() if g is None else g.flatten() for g, p in zip(slopes, trained, strict=True)]
        )
        expected += (flat / max(1.0, float(flat.norm()) / 0.5)).double()
    torch.testing.assert_close(total, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("output", "returned"), [("a", {"a": 1}), (1, (0, 1)), ("logits", None)])
def test_a_part_that_is_not_there_is_told(output: Any, returned: Any) -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return x if returned is None else type(returned)()

    with pytest.raises(PluginError, match="no such part"):
        FieldsModel(Odd(), Fields(x=Field((2,))), output=output)(torch.zeros(1, 2))


def test_a_model_of_several_inputs_is_told_how_to_be_wrapped() -> None:
    with pytest.raises(PluginError, match="FieldsModel"):
        check_model(reader(), (FIELDS.width,))
    with pytest.raises(PluginError, match="say which part"):
        check_model(FieldsModel(reader(), FIELDS), (FIELDS.width,))

    class Tuple(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return (x, x)

    with pytest.raises(PluginError, match=r"to a tuple.*FieldsModel"):
        check_model(Tuple(), (3,))
    check_model(FieldsModel(nn.Bilinear(2, 2, 3), Fields(a=Field((2,)), b=Field((2,))), positional=True), (4,))


@pytest.mark.slow
def test_low_rank_adapters_alone_are_trained_released_and_charged(tmp_path: Path) -> None:
    """Of a Hugging Face style model with LoRA: the private vector is A, B and the head; all else stays to the bit."""
    own = reader().requires_grad_(False)
    own.attention.out_proj = Lora(own.attention.out_proj)  # type: ignore[assignment]
    own.head.requires_grad_()
    model = FieldsModel(own, FIELDS, output="logits")
    before = {key: value.clone() for key, value in model.state_dict().items()}
    adapted = 2 * 8 * 2 + (9 * 3 + 3)
    assert Layout.of(model).dimension == adapted
    silos = {name: Texts(12, first=100 * i) for i, name in enumerate("ab")}
    run = dpfl.train(
        dpfl.Federation.from_datasets(silos, fields=FIELDS, classes=[0, 1, 2]),
        model=model,
        algorithm=dpfl.algorithms.Scaffold(local_steps=2, local_lr=1.0),
        privacy=dpfl.Privacy(noise_multiplier=1.0),
        rounds=2,
        out=tmp_path,
        progress=False,
    )
    after = run.model.state_dict()
    moved = {key for key, value in before.items() if not torch.equal(value, after[key])}
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert moved == trained


class Bag(nn.Module):
    """Words in, as int64; classes out."""

    def __init__(self, known: int = WORDS) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(known, 4), nn.Linear(4, 2)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.words(ids).mean(1))
        return out


BAG = Fields(ids=Field((LENGTH,), below=WORDS))
SETTING: dict[str, Any] = {
    "algorithm": dpfl.algorithms.FedAvg(local_steps=1, local_lr=0.5),
    "privacy": dpfl.Privacy(noise_multiplier=1.0),
    "rounds": 1,
    "progress": False,
}


def words(changed: tuple[int, int, float] | None = None) -> dict[str, tuple[Tensor, Tensor]]:
    """Arrays of two silos; ``changed``: (row, place, value) of the second's."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randint(WORDS, (2, 12, LENGTH), generator=rng).float()
    if changed is not None:
        x[1, changed[0], changed[1]] = changed[2]
    return {name: (rows, torch.arange(12) % 2) for name, rows in zip("ab", x, strict=True)}


def by_oracle(tmp_path: Path) -> Any:
    data = torch.utils.data.TensorDataset(*words((3, 2, WORDS + 27))["b"])
    privacy = dpfl.Privacy(noise_multiplier=1.0, sampler="poisson", record_rate=0.5)
    return dpfl.PrivateOracle.of(
        FieldsModel(Bag(), BAG), data, privacy=privacy, steps=1, ledger=tmp_path / "silo.jsonl"
    )


def by_file(tmp_path: Path) -> Any:
    for name, (x, y) in words((3, 2, WORDS + 27)).items():
        np.savez(tmp_path / f"{name}.npz", x=x, y=y)
    held = dpfl.Federation.load("npz", files=str(tmp_path / "*.npz"), classes=[0, 1], partition="natural")
    return dpfl.train(held, model=FieldsModel(Bag(), BAG), out=tmp_path / "out", **SETTING)


def trained(tmp_path: Path, silos: Any, model: Any) -> dpfl.Run:
    return dpfl.train(dpfl.Federation.from_arrays(silos, classes=[0, 1]), model=model, out=tmp_path / "out", **SETTING)


WRONG = f"ids has the value {WORDS + 27}, which is not a whole number from 0 to {WORDS - 1}"


@pytest.mark.parametrize(
    ("enter", "where"),
    [
        (lambda p: trained(p, words((3, 2, WORDS + 27)), FieldsModel(Bag(), BAG)), "silo b, record 3"),
        (lambda p: dpfl.Federation.from_arrays(words((3, 2, WORDS + 27)), fields=BAG), "silo b, record 3"),
        (lambda p: trained(p, words((3, 2, WORDS + 27)), lambda: FieldsModel(Bag(), BAG)), r"silo 1 \(b\), record"),
        (lambda p: trained(p, words((3, 2, WORDS + 27)), lambda: nn.Sequential(FieldsModel(Bag(), BAG))), "silo 1"),
        (by_file, r"silo 1 \(b\), record"),
        (by_oracle, "silo 0, record 3"),
    ],
)
def test_a_word_out_of_range_is_refused_before_anything_is_released(
    tmp_path: Path, enter: Callable[[Path], Any], where: str
) -> None:
    with pytest.raises(DataError, match=f"{where}.*{WRONG}"):
        enter(tmp_path)
    assert not list(tmp_path.rglob("ledger.jsonl")) and not (tmp_path / "silo.jsonl").exists()


@pytest.mark.parametrize("value", [-1.0, 0.5, float(WORDS)])
def test_what_is_no_word_is_found_in_rows(value: float) -> None:
    rows = torch.stack([x for x, _ in words((3, 2, value)).values()])[1]
    found = BAG.wrong(rows)
    assert found is not None and found[0] == 3 and f"{value:g}" in found[1]
    assert BAG.wrong(rows[:3]) is None and BAG.wrong(rows[:0]) is None and BAG.wrong(rows[:3].long()) is None
    assert (BAG.wrong(rows[:, :5]) or (0, ""))[1] == f"it has 5 numbers, and the fields have 6 (ids 6). {WIDTH}"


class Two(nn.Module):
    """Two inputs, with as many words each as are said; of the first, those below ``least`` are none."""

    def __init__(self, first: int, second: int, least: int = 0) -> None:
        super().__init__()
        self.first, self.second, self.least = nn.Embedding(first, 3), nn.Embedding(second, 3), least

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        out: Tensor = self.first(a - self.least).sum(1) + self.second(b).sum(1)
        return out


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (Two(9, 40), "with 49 in b, .* below=50: IndexError: .*nn.Embedding.50,"),
        (Two(8, 50), "with 8 in a, .* below=9: IndexError"),
        (Two(9, 1), "with 49 in b, "),  # which fails on other made-up records, too
        (Two(9, 50, least=1), r"fails on features of shape \(3, 5\).*IndexError: index out of range in self \(.*\)\.$"),
    ],
)
def test_a_model_with_fewer_words_than_its_fields_is_refused_by_name(model: nn.Module, said: str) -> None:
    fields = Fields(a=Field((3,), below=9), b=Field((2,), below=50))
    check_model(FieldsModel(Two(9, 50), fields), (5,))
    with pytest.raises(PluginError, match=said):
        check_model(FieldsModel(model, fields), (5,))


def test_fields_say_what_their_columns_are() -> None:
    assert (
        Fields(age=Field(), row=Field((2,))).told
        == "The 3 numbers of a record, in order: age (1 number); row (2 numbers)."
    )
    assert "mask (1 whole number from 0 to 1). Any other" in Fields(mask=Field((1,), below=2)).told


@pytest.mark.parametrize("width", [LENGTH - 1, LENGTH + 1])
def test_records_of_another_width_than_the_fields_are_told(width: int) -> None:
    with pytest.raises(PluginError, match=rf"a record has {width} numbers, and the fields have {LENGTH}.*{WIDTH}"):
        check_model(nn.Sequential(FieldsModel(Bag(), BAG)), (width,))


@pytest.mark.parametrize(
    "made", [lambda known: FieldsModel(Bag(known), BAG), lambda known: lambda: FieldsModel(Bag(known), BAG)]
)
def test_whether_a_model_has_all_words_is_asked_before_anything_is_charged(tmp_path: Path, made: Any) -> None:
    """Both of a module and of a factory, and though no record has the words that are lacking."""
    silos = {name: (x.clamp(max=WORDS - 11), y) for name, (x, y) in words().items()}
    with pytest.raises(PluginError, match=f"with {WORDS - 1} in ids, .* below={WORDS}"):
        trained(tmp_path, silos, made(WORDS - 10))
    assert not list(tmp_path.rglob("ledger.jsonl"))
    trained(tmp_path, silos, made(WORDS))


@pytest.mark.slow
def test_a_trained_model_of_words_refuses_others_and_is_exported_for_any_number_of_records(tmp_path: Path) -> None:
    run = trained(tmp_path, words(), FieldsModel(Bag(), BAG))
    x = words()["a"][0]
    other = x.clone()
    other[5, 1] = WORDS + 27
    with pytest.raises(DataError, match=rf"record 5 .*{WRONG}"):
        dpfl.predict(run, other)
    program = torch.export.load(run.export(tmp_path / "export") / "model.pt2").module()
    said = (tmp_path / "export" / "README.md").read_text()
    whole = f"in order: ids ({LENGTH} whole numbers from 0 to {WORDS - 1}). Any other number counts as the nearest of"
    assert whole in said and "1 round, 2 silos" in said
    beyond = torch.tensor([[0.0, WORDS + 27, -3.0, 0.4, 1.6, 2.0]])
    with torch.no_grad():
        torch.testing.assert_close(program(beyond), run.model(torch.tensor([[0.0, WORDS - 1, 0, 0, 2, 2]])))
    for count in (1, 7, 12):
        with torch.no_grad():
            torch.testing.assert_close(program(x[:count]), run.model(x[:count]))
