"""Adapters of peft on models of transformers: they alone are trained, and a record's gradient is that of the model."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import dpfl_plugin as dpfl
from dpfl_plugin.core.vectors import Layout
from dpfl_plugin.errors import UnsupportedError
from dpfl_plugin.gradients.base import Records
from dpfl_plugin.gradients.bookkeeping import BookKeeping
from dpfl_plugin.gradients.losses import cross_entropy
from dpfl_plugin.models.build import check_model

if any(importlib.util.find_spec(name) is None for name in ("peft", "transformers")):
    pytest.skip("peft is not installed: pip install 'dpfl-plugin[lora]'", allow_module_level=True)

# peft and transformers warn of each other's names, and torch of its own batching rules.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
EXAMPLE = Path(__file__).parents[2] / "examples" / "lora" / "lora.py"
WORDS, LENGTH = 50, 6
FIELDS = dpfl.models.Fields(
    input_ids=dpfl.models.Field((LENGTH,), below=WORDS), attention_mask=dpfl.models.Field((LENGTH,), below=2)
)


@pytest.fixture
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lora", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def reader(*, lora_dropout: float = 0.0, **changes: float) -> dpfl.models.FieldsModel:
    """A BERT of one layer with adapters of rank 2 and a head."""
    from peft import LoraConfig, get_peft_model
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"vocab_size": WORDS, "hidden_size": 16, "intermediate_size": 16, "max_position_embeddings": LENGTH}
    layers = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_labels": 3}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = BertForSequenceClassification(BertConfig(**{**sizes, **layers, **dropout, **changes}))
        lora = LoraConfig(
            r=2, lora_dropout=lora_dropout, target_modules=["query", "value"], modules_to_save=["classifier"],
            init_lora_weights=False,  # B does not start at 0, so that A has a gradient, too
        )  # fmt: skip
        return dpfl.models.FieldsModel(get_peft_model(network, lora), FIELDS, output="logits").eval()


@pytest.mark.slow
def test_the_example_trains_releases_and_changes_adapters_and_head_alone(example: ModuleType, tmp_path: Path) -> None:
    run = example.main(["--epochs", "1", "--rounds", "2", "--out", str(tmp_path)])
    before = example.adapted(example.pretrained(example.scans()[0], 1))  # its seeds are fixed
    trained = {name for name, parameter in before.named_parameters() if parameter.requires_grad}
    assert trained and all("lora_" in name or "modules_to_save" in name for name in trained)
    assert Layout.of(before).dimension == example.size(before)[0] < example.size(before)[1] / 10
    after, start = run.model.state_dict(), before.state_dict()
    assert {key for key in start if not torch.equal(start[key], after[key])} == trained
    assert run.result["engine"] == "bookkeeping" and run.result["epsilon"]["server"]["epsilon"] <= 4


def test_clipped_gradients_of_an_adapted_reader_are_those_of_each_record() -> None:
    """By autograd through the model called as its author calls it; masks differ, and two of five are clipped."""
    model = reader()
    check_model(model, (FIELDS.width,))
    rng = torch.Generator().manual_seed(1)
    words = torch.randint(WORDS, (5, LENGTH), generator=rng)
    mask = (torch.arange(LENGTH) <= torch.arange(1, 6).unsqueeze(1)).long()
    labels = torch.tensor([0, 1, 2, 0, 1])
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    slopes = []
    for row in range(5):
        own = model.module(input_ids=words[row : row + 1], attention_mask=mask[row : row + 1]).logits
        loss = cross_entropy(own, labels[row : row + 1]).sum()
        slopes.append(torch.cat([one.flatten() for one in torch.autograd.grad(loss, trained)]).double())
    bound = float(torch.stack([slope.norm() for slope in slopes]).median())
    expected = sum(slope / max(1.0, float(slope.norm()) / bound) for slope in slopes)
    layout = Layout.of(model)
    total = torch.zeros(layout.dimension, dtype=torch.float64)
    records = Records(torch.cat([words, mask], dim=1).float(), labels)
    vector = layout.flatten(dict(model.named_parameters()))
    BookKeeping(model, cross_entropy, 2**24).clipped_sum(vector, records, bound, total)
    torch.testing.assert_close(total, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "layer"),
    [
        ({"hidden_dropout_prob": 0.1}, "bert.embeddings.dropout"),
        ({"attention_probs_dropout_prob": 0.1}, "attention.self.dropout"),
        ({"classifier_dropout": 0.1}, "model.dropout"),
        ({"lora_dropout": 0.1}, "query.lora_dropout.default"),
    ],
)
def test_dropout_of_the_network_or_of_adapters_is_refused_by_its_layer(changes: dict[str, Any], layer: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"{layer} \(Dropout\): dropout draws.*set it to 0"):
        check_model(reader(**changes), (FIELDS.width,))
