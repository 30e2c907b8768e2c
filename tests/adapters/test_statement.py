"""What a silo's folder says of itself, and users' own loaders."""

import json
import math

import numpy as np
import pytest
import torch
from scipy.stats import kstest, norm
from torch.utils.data import DataLoader, TensorDataset

from dpfl_plugin.adapters import agree
from dpfl_plugin.adapters.records import silo_of
from dpfl_plugin.errors import DataError, UnsupportedError
from dpfl_plugin.privacy.accountants import PLD
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.views import server_view
from tests.adapters.federation import NOISY, SimulatedSilo, block, draws, loop
from tests.adapters.test_faults import begin, module, records
from tests.cli.command import dpfl

ALPHA = 1e-6  # false alarm of a statistical test


def test_a_silo_states_what_its_own_ledger_proves_and_no_amplification(tmp_path):
    with begin(tmp_path, block(rounds=8, silo_rate=0.5)) as made:
        made.run()
        for i in made.silos:
            folder = tmp_path / f"silo-{i}"
            charges = list(Ledger.open(folder / "ledger.jsonl", append=False))
            assert {charge.silo for charge in charges} == {i}
            said = json.loads((folder / "ledger.json").read_text())
            realised = server_view(charges[: said["num_charges"]], PLD(), 1e-5).epsilon
            assert said["views"]["server"]["epsilon"] == pytest.approx(realised, rel=1e-9)
            assert said["views"]["third_party"]["epsilon"] == pytest.approx(realised, rel=1e-9)
            assert [row["silo"] for row in said["silos"]] == [i]
            assert "outsider" not in said["views"]
            text = (folder / "privacy.md").read_text()
            assert "no amplification is claimed from it" in text
            assert "keys that each silo drew from its operating system" in text
            assert "Who took part was drawn" not in text, "the platform chose who took part"
        told = made.server.summary()["silos"]
        assert told == {
            str(i): {"rounds": len({c.round for c in silo._ledger}), "epsilon": silo.epsilon}
            for i, silo in made.silos.items()
        }


def test_what_a_silo_may_publish_confirms_no_guess_of_its_records(tmp_path):
    """The checksums of the ledger's lines follow from its first one, which has the digest of the records."""
    with begin(tmp_path, block(rounds=3)) as made:
        folder = tmp_path / "silo-1"
        for _ in range(3):
            made.round()
            lines = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
            private = {line["check"] for line in lines} | {lines[0]["facts"]["records_sha256"]}
            private |= {line["silos"][0][1][0].split(".")[1] for line in lines[1:]}
            text = (folder / "ledger.json").read_text() + (folder / "privacy.md").read_text()
            assert not [one for one in private if one in text]
            assert json.loads((folder / "details.json").read_text())["head"] in private


def test_dpfl_account_reads_a_silos_folder(tmp_path):
    with begin(tmp_path, block(rounds=3)) as made:
        made.run()
        epsilon = made.silos[1].epsilon
    rows = json.loads(dpfl("account", str(tmp_path / "silo-1"), "--json").out)
    found = {(row["view"], row["accountant"]): row["epsilon"] for row in rows}
    assert found["server", "PLD"] == pytest.approx(epsilon, rel=1e-9)
    assert found["third party", "PLD"] == pytest.approx(epsilon, rel=1e-9)


@pytest.mark.statistical
def test_the_noise_of_an_upload_is_gaussian_of_the_stated_size(tmp_path):
    """False alarm: 1e-6 a run. Power: noise of 1.1 times the size is noticed, here, with certainty for all purposes.

    FedSGD with one full batch: upload = -lr (clipped mean + 2 C sigma / n Z), and the clipped mean is what a run
    without noise uploads.
    """
    sigma, clip, lr, n, d = 2.0, 0.7, 0.3, 30, 100_000
    model = torch.nn.Linear(d // 2 - 1, 2).double()
    data = {0: (torch.randn(n, d // 2 - 1, dtype=torch.float64), torch.arange(n) % 2)}
    uploads = []
    for name, noise in (("plain", 0.0), ("noisy", sigma)):
        privacy = {"noise_multiplier": noise, "clip_norm": clip, "sampler": "full"}
        values = block(algorithm={"name": "fedavg", "local_steps": 1, "local_lr": lr}, privacy=privacy)
        with loop(tmp_path / name, values, model, data) as made:
            uploads.append(made.silos[0].answer(made.server.begin()).vectors["model"])
    noise = ((uploads[1] - uploads[0]) / lr).numpy()
    std = 2 * clip * sigma / n
    assert kstest(noise, norm(scale=std).cdf).pvalue > ALPHA
    assert kstest(noise, norm(scale=1.1 * std).cdf).pvalue < ALPHA


# Loaders


def alike(*found):
    for one in found:
        assert np.array_equal(one.train_x, found[0].train_x) and np.array_equal(one.train_y, found[0].train_y)
        assert one.train_y.dtype == np.int64 and len(one.test_y) == 0


def test_a_loader_gives_every_record_once_and_in_order_however_it_shuffles():
    x, y = torch.arange(33.0).reshape(11, 3), torch.arange(11) % 4
    data = TensorDataset(x, y)
    batches = [(x[:4], y[:4]), (x[4:8], y[4:8]), (x[8:], y[8:])]
    given = [
        (x, y),
        (x.numpy(), y.numpy()),
        data,
        DataLoader(data, batch_size=4, shuffle=True, drop_last=True),
        batches,
        iter(batches),
        DataLoader(batches, batch_size=None),
        [(x.int()[:5], y.int()[:5]), (x.int()[5:], y.int()[5:])],
    ]
    alike(*(silo_of(one, torch.nn.Linear(3, 4)) for one in given))


@pytest.mark.parametrize(
    ("data", "error", "why"),
    [
        ([], DataError, "no training records"),
        ((torch.zeros(0, 3), torch.zeros(0).long()), DataError, "no training records"),
        ((torch.zeros(3, 2), torch.zeros(3)), UnsupportedError, r"labels are torch\.float32"),
        ((torch.full((3, 2), math.nan), torch.zeros(3).long()), DataError, "not finite"),
        ((torch.zeros(3, 2), torch.zeros(4).long()), DataError, "3 rows of features, but 4 labels"),
        ((torch.zeros(3, 2).bool(), torch.zeros(3).long()), UnsupportedError, r"features are torch\.bool"),
        ((torch.zeros(3, 2).cfloat(), torch.zeros(3).long()), UnsupportedError, r"features are torch\.complex64"),
        ([(torch.zeros(3, 2),)], DataError, "must be pairs"),
        ([(torch.zeros(3, 2), torch.zeros(3).long()), (torch.zeros(3, 1), torch.zeros(3).long())], DataError, "alike"),
    ],
)
def test_what_is_no_training_data_is_refused(data, error, why):
    with pytest.raises(error, match=why):
        silo_of(data, torch.nn.Linear(2, 3))


class Words(torch.nn.Module):
    """A bag of words: an Embedding, its mean over a record, a Linear layer; ``cast`` for a project that has floats."""

    def __init__(self, cast: bool) -> None:
        super().__init__()
        self.table, self.head, self.cast = torch.nn.Embedding(12, 4), torch.nn.Linear(4, 3), cast
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.linspace(-1, 1, parameter.numel()).reshape(parameter.shape))
        self.double()

    def forward(self, x):
        assert self.cast or x.dtype == torch.int64
        return self.head(self.table(x.abs().long() if self.cast else x).mean(dim=1))


@pytest.mark.parametrize("kind", [torch.int64, torch.int32])
def test_word_numbers_stay_integers_for_a_model_that_takes_them(tmp_path, kind):
    """The same bits, and the same charges, as by a model that makes integers of floats itself."""
    rng = torch.Generator().manual_seed(0)
    words = {i: torch.randint(0, 12, (20 + i, 6), generator=rng) for i in range(2)}
    labels = {i: torch.arange(20 + i) % 3 for i in range(2)}
    with (
        loop(
            tmp_path / "a", block(), Words(False), {i: (words[i].to(kind), labels[i]) for i in words}, draws(1, "x")
        ) as a,
        loop(
            tmp_path / "b", block(), Words(True), {i: (words[i].double(), labels[i]) for i in words}, draws(1, "x")
        ) as b,
    ):
        first = a.server.model.clone()
        assert torch.equal(a.run(), b.run()) and not torch.equal(a.server.model, first)
        assert a.charges() == b.charges()


def test_a_word_that_the_model_does_not_have_is_refused_and_other_integers_become_floats():
    x, y = torch.tensor([[0, 11], [3, 5]]), torch.zeros(2).long()
    assert silo_of((x, y), Words(False)).train_x.dtype == np.int64
    for wrong in (12, -1):
        with pytest.raises(DataError, match=r"from -?\d+ to 1\d, .* Is its Embedding large enough\?"):
            silo_of((torch.where(x == 5, wrong, x), y), Words(False))
    large = 2**40 + torch.arange(4).reshape(2, 2)  # float32 would round it
    found = silo_of((large, y), torch.nn.Linear(2, 3).double()).train_x
    assert found.dtype == np.float64 and np.array_equal(found, large.numpy())


SMALL, LARGE = [np.uint8, np.int8, np.uint16, np.int16], [np.uint32, np.int32, np.uint64, np.int64]
"""Integers that float32 holds exactly, all of them; and those that it does not."""


@pytest.mark.parametrize("as_pairs", [False, True])
@pytest.mark.parametrize("kind", SMALL + LARGE)
def test_integers_of_every_width_are_the_same_numbers_as_floats_and_as_words(kind, as_pairs):
    given = lambda x: (  # noqa: E731
        TensorDataset(torch.from_numpy(x), torch.arange(2)) if as_pairs else (x, np.arange(2))
    )
    ends = np.iinfo(kind)
    greatest = min(ends.max, 2**53 - 1)  # what a model in float64 can tell apart
    x = np.array([[greatest, greatest - 1, 0], [max(ends.min, -(2**53) + 1), 1, 2]], dtype=kind)
    for model in (torch.nn.Linear(3, 2).double(), torch.nn.Linear(3, 2)):
        found = silo_of(given(x), model).train_x
        assert found.dtype == (np.float32 if kind in SMALL else np.float64)
        assert found.tolist() == x.tolist()
    words = np.array([[0, 11], [3, 5]], dtype=kind)
    found = silo_of(given(words), Words(cast=False)).train_x
    assert found.dtype == np.int64
    assert found.tolist() == words.tolist()


@pytest.mark.parametrize("model", [torch.nn.Linear(2, 3), Words(cast=False)])
def test_integers_beyond_int64_are_refused(model):
    features, labels = np.array([[3, 2**63]], dtype=np.uint64), np.zeros(1, dtype=np.int64)
    with pytest.raises(DataError, match=r"9223372036854775808.*above the greatest of int64, 2\^63 - 1.*Give them as"):
        silo_of((features, labels), model)


def test_halves_become_floats():
    x, y = torch.tensor([[0.5, 3.0]]), torch.zeros(1).long()
    for kind in (torch.float16, torch.bfloat16):
        found = silo_of((x.to(kind), y), torch.nn.Linear(2, 3)).train_x
        assert found.dtype == np.float32 and found.tolist() == x.tolist()


def test_a_loss_of_the_projects_own(tmp_path):
    agreement = agree(block(privacy=NOISY), num_silos=1, model=module())
    loss = lambda outputs, labels: torch.nn.functional.cross_entropy(outputs, labels, reduction="none")  # noqa: E731
    with SimulatedSilo(agreement, 0, module(), records()[0], tmp_path / "good", loss=loss) as silo:
        assert silo.epsilon == 0
    with pytest.raises(UnsupportedError.__mro__[1], match="must give one value for each record"):
        SimulatedSilo(agreement, 0, module(), records()[0], tmp_path / "bad", loss=torch.nn.CrossEntropyLoss())
