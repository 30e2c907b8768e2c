"""What a loader gives is what is read: the same records, each once; or it is refused by name."""

import math
import re
from collections import Counter

import numpy as np
import pytest
import torch
from torch.utils import data as torch_data
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset

from dpfl_plugin.adapters import owner
from dpfl_plugin.adapters.loaders import check_apart
from dpfl_plugin.adapters.records import silo_of
from dpfl_plugin.errors import DataError, UnsupportedError
from dpfl_plugin.privacy.accountants import PLD
from dpfl_plugin.privacy.ledger import Ledger
from dpfl_plugin.privacy.views import server_view
from tests.adapters.federation import block, loop
from tests.adapters.test_faults import module

N = 60
X = torch.arange(N * 5, dtype=torch.float64).reshape(N, 5) / 100
Y = torch.arange(N) % 3
ALL = TensorDataset(X, Y)
SOME = [31, 4, 15, 9, 26, 5]


class Pairs(torch_data.Dataset):
    """A data set of a project's own, whose records ``change``."""

    def __init__(self, x=X, y=Y, change=lambda x: x):
        self.x, self.y, self.change = x, y, change

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.change(self.x[index]), int(self.y[index])


def read(data):
    """Rows of X that were read, in order."""
    silo = silo_of(data, module())
    rows = [int(row[0] * 100 / 5 + 0.5) for row in silo.train_x]
    assert np.array_equal(silo.train_x, X[rows].numpy()) and np.array_equal(silo.train_y, Y[rows].numpy())
    return rows


def yielded(loader):
    return Counter(int(row[0] * 100 / 5 + 0.5) for x, _ in loader for row in (x if x.dim() == 2 else [x]))


BatchSampler, Sequential, Random = torch_data.BatchSampler, torch_data.SequentialSampler, torch_data.RandomSampler
OwnLoader = type("OwnLoader", (DataLoader,), {})

HONOURED = {
    "all": DataLoader(ALL, batch_size=7),
    "shuffled": DataLoader(ALL, batch_size=7, shuffle=True, generator=torch.Generator().manual_seed(3)),
    "a random subset's sampler": DataLoader(ALL, batch_size=4, sampler=torch_data.SubsetRandomSampler(SOME)),
    "its indices as a tensor": DataLoader(ALL, sampler=torch_data.SubsetRandomSampler(torch.tensor(SOME))),
    "indices": DataLoader(ALL, batch_size=4, sampler=SOME),
    "an array of indices": DataLoader(ALL, batch_size=4, sampler=np.array(SOME)),
    "a batch sampler of a subset": DataLoader(
        ALL, batch_sampler=BatchSampler(torch_data.SubsetRandomSampler(SOME), batch_size=2, drop_last=False)
    ),
    "a batch sampler of all": DataLoader(ALL, batch_sampler=BatchSampler(Random(ALL), 7, drop_last=False)),
    "a subset": DataLoader(Subset(ALL, SOME), batch_size=4, shuffle=True),
    "a subset of a subset": DataLoader(Subset(Subset(ALL, range(10, 50)), SOME), batch_size=4),
    "a sampler in a subset": DataLoader(Subset(ALL, range(10, 50)), sampler=torch_data.SubsetRandomSampler(SOME)),
    "two data sets": DataLoader(ConcatDataset([Subset(ALL, [3, 1]), Subset(ALL, SOME)]), batch_size=3),
    "a data set of its own": DataLoader(Pairs(), batch_size=4, sampler=torch_data.SubsetRandomSampler(SOME)),
    "batches": DataLoader([(X[:8], Y[:8]), (X[8:20], Y[8:20])], batch_size=None),
    "some batches": DataLoader([(X[:8], Y[:8]), (X[8:20], Y[8:20])], batch_size=None, sampler=[1]),
    "dropped, and nothing is": DataLoader(ALL, batch_size=6, drop_last=True),
    "a loader class": OwnLoader(Subset(ALL, SOME), batch_size=4),
}


@pytest.mark.parametrize("loader", HONOURED.values(), ids=HONOURED)
def test_what_is_read_is_what_the_loader_gives_each_once(loader):
    rows = read(loader)
    assert Counter(rows) == yielded(loader) and max(Counter(rows).values()) == 1
    assert rows == read(loader), "in the same order whenever it is read"


def test_what_is_no_loader_is_read_as_it_is():
    assert read(Subset(ALL, SOME)) == SOME
    assert read(Subset(Subset(ALL, range(10, 50)), [0, 3])) == [10, 13]
    assert read(torch_data.random_split(ALL, [50, 10], torch.Generator().manual_seed(0))[1]) != list(range(N))
    assert read([(X[5:9], Y[5:9]), (X[:2], Y[:2])]) == [5, 6, 7, 8, 0, 1]
    assert read((X[3:6].numpy(), Y[3:6].numpy())) == [3, 4, 5]


class Twofold(torch_data.Sampler):
    def __iter__(self):
        return iter([0, 1, 1])

    def __len__(self):
        return 3


class Half(Sequential):
    def __iter__(self):
        return iter(range(len(self.data_source) // 2))


class Batches(BatchSampler):
    def __iter__(self):
        return iter([[0, 1], [1, 2]])


class OwnBatches(DataLoader):
    def __iter__(self):
        return iter([(X[:3], Y[:3])])


class Stream(torch_data.IterableDataset):
    def __iter__(self):
        return iter([(X[0], Y[0])])


def skip_some(items):
    return torch_data.default_collate(items[:1])


class Wrapped:
    """As platforms wrap loaders: it has batches, and a length, and hides the rest."""

    def __init__(self, loader):
        self.loader = loader

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        return iter(self.loader)


class ByBatch(TensorDataset):
    def __getitems__(self, indices):
        return [self[index] for index in indices if index != 2]


def noisy(x):
    return x + torch.randn(5)


REFUSED = {
    "weights": (
        DataLoader(ALL, sampler=torch_data.WeightedRandomSampler(torch.ones(N), 10)),
        r"the sampler WeightedRandomSampler: which records it gives, and how often",
    ),
    "replacement": (DataLoader(ALL, sampler=Random(ALL, replacement=True)), "RandomSampler with replacement"),
    "fewer of them": (DataLoader(ALL, sampler=Random(ALL, num_samples=20)), "RandomSampler of 20 records, of 60"),
    "of other data": (DataLoader(ALL, sampler=Random(range(20))), "RandomSampler of 20 records, of 60"),
    "in order, of other data": (DataLoader(ALL, sampler=Sequential(range(20))), "the sampler SequentialSampler"),
    "ranks": (
        DataLoader(ALL, sampler=torch_data.DistributedSampler(ALL, 7, 0, shuffle=False)),
        "the sampler DistributedSampler",
    ),
    "a sampler of its own": (DataLoader(ALL, sampler=Twofold()), "the sampler Twofold"),
    "a known sampler, changed": (DataLoader(ALL, sampler=Half(ALL)), "the sampler Half"),
    "batches of its own": (DataLoader(ALL, batch_sampler=[[0, 1], [1, 2]]), "the batch_sampler list"),
    "known batches, changed": (DataLoader(ALL, batch_sampler=Batches(Sequential(ALL), 2, False)), "batch_sampler Bat"),
    "collate": (DataLoader(ALL, batch_size=4, collate_fn=skip_some), "the collate_fn skip_some.*__getitem__"),
    "a lambda": (DataLoader(ALL, batch_size=None, collate_fn=lambda item: item), "the collate_fn <lambda>"),
    "the end is dropped": (DataLoader(ALL, batch_size=7, drop_last=True), "the last 4 of its 60 records are never"),
    "a loader of its own": (OwnBatches(ALL), "a OwnBatches, with batches of its own making"),
    "an iterator of a loader": (iter(DataLoader(ALL)), "a _SingleProcessDataLoaderIter.*Give the DataLoader itself"),
    "a loader in another class": (Wrapped(DataLoader(ALL)), "a Wrapped, which reads a loader"),
    "whole batches by another way": (DataLoader(ByBatch(X, Y)), "ByBatch has __getitems__"),
    "in a subset, too": (DataLoader(Subset(ByBatch(X, Y), SOME)), "ByBatch has __getitems__"),
    "a row that was expanded": ((X[:1].expand(10, 5), Y[:10]), "record 1 of the silo is there twice"),
    "one in a data set": (TensorDataset(X[:1].expand(10, 5), Y[:10]), "record 1 of the silo is there twice"),
    "one of numpy": ((np.broadcast_to(X[:1].numpy(), (10, 5)), Y[:10].numpy()), "record 1 of the silo is there twice"),
    "a stream": (DataLoader(Stream()), "an IterableDataset"),
    "a bare stream": (Stream(), "an IterableDataset"),
    "augmentation": (DataLoader(Pairs(change=noisy)), r"different record 0 when it is read again.*Leave the augm"),
    "augmentation of batches": (
        DataLoader(Subset(Pairs(change=noisy), SOME)),
        "when it is read again: it changes records",
    ),
    "an index twice": (DataLoader(ALL, sampler=[3, 4, 3]), "record 3 of the silo is there twice"),
    "no such index": (DataLoader(ALL, sampler=[3, N]), f"record {N}, of {N} that there are"),
    "an index below 0": (DataLoader(ALL, sampler=[3, -1]), f"record -1, of {N}"),
    "twice in a subset": (Subset(ALL, [3, 4, 3]), "record 2 of the silo is there twice"),
    "twice, from its end": (Subset(ALL, [59, -1]), "record 1 of the silo is there twice"),
    "twice, by two ways": (ConcatDataset([Subset(ALL, [1, 2]), Subset(Subset(ALL, [9, 2]), [1])]), "is there twice"),
    "twice in memory": (ConcatDataset([TensorDataset(X[:9], Y[:9]), TensorDataset(X[8:12], Y[8:12])]), "there twice"),
    "batches that overlap": ([(X[:8], Y[:8]), (X[7:9], Y[7:9])], "record 8 of the silo is there twice"),
    "mappings of more": ([{"image": X, "mask": X, "label": Y}], "the keys 'image', 'mask', 'label'.*have two"),
    "a mapping of two labels": ({"y": X, "label": Y}, "mappings with the keys 'y', 'label'.*pairs"),
    "mappings without labels": ([{"image": X, "kind": Y}], "mappings with the keys 'image', 'kind'.*'target' or"),
    "mappings that overlap": ([{"x": X[:8], "y": Y[:8]}, {"x": X[7:9], "y": Y[7:9]}], "record 8 .* is there twice"),
    "a tensor of two rows": ([X[:2]], "one is a Tensor"),
    "words": ([(["dogs"], ["cats"])], "pairs of list and list, which are not tensors.*numbers from 0"),
    "a list of records": ([(X[0], 0), (X[1], 1)], "read as batches, and item 0 .* one label, not .*a torch Dataset"),
    "of records with words": ([(X[0], "a"), (X[1], "b")], "item 0 of the silo's data has one label"),
    "of labels of one number": ([(X[0], Y[:1]), (X[1], Y[1:2])], "item 0 .* has 5 features in one row, and labels of"),
    "of mappings": ([{"x": X[0], "y": Y[0]}], "item 0 of the silo's data has one label"),
    "a loader of records as batches": (DataLoader(ALL, batch_size=None), "batch_size=None, is read as batches"),
}


@pytest.mark.parametrize(("data", "why"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_told_or_counts_twice_is_refused(data, why):
    with pytest.raises((DataError, UnsupportedError), match=re.compile(why, re.DOTALL)) as error:
        silo_of(data, module())
    assert str(error.value).rstrip().endswith(".")


class Rows:
    """As data sets of Hugging Face are: rows are mappings."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return {"pixels": X[index], "label": int(Y[index])}


@pytest.mark.parametrize("made", [Rows(), DataLoader(Rows()), {"pixels": X[:3], "label": Y[:3]}])
def test_mappings_of_features_and_a_label_are_pairs_and_the_key_of_labels_is_said(made, caplog):
    caplog.set_level("INFO", "dpfl_plugin.silo")
    owner.say_once.cache_clear()
    found = silo_of(made, module())
    assert np.array_equal(found.train_x, X[:3].numpy()) and found.train_y.tolist() == Y[:3].tolist()
    assert caplog.text.count("'label' has their labels, and the other key features") == 1
    assert "pixels" not in caplog.text  # which is a record's where a loader took its first line for a header


def test_a_record_at_two_silos_of_one_process_is_refused():
    loaders = {i: DataLoader(Subset(ALL, range(15 * i, 15 * i + 15)), batch_size=4) for i in range(4)}
    assert check_apart(loaders) == dict.fromkeys(range(4), 15)
    for other in (
        DataLoader(ALL, sampler=[59, 14]),
        Subset(Subset(ALL, [3, 2]), [1]),
        (X[14:16], Y[14:16]),
        [(X[55:], Y[55:])],
        TensorDataset(X[2:3], Y[2:3]),
    ):
        with pytest.raises(DataError, match=r"silos [0-3] and 7 have a record in common"):
            check_apart({**loaders, 7: other})
    assert check_apart({0: loaders[0], 1: None, 2: iter([(X, Y)]), 3: (X[30:], Y[30:])}) == {0: 15, 3: 30}


def test_loaders_over_one_data_set_state_what_they_cost(tmp_path):
    """40, 60, 30 and 50 of 180 records, batches of a quarter of each; what is charged is of these, not of all."""
    sizes, x = (40, 60, 30, 50), torch.randn(180, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    whole, ends = TensorDataset(x, torch.arange(180) % 3), np.cumsum((0, *sizes))
    loaders = {
        i: DataLoader(whole, batch_size=8, sampler=torch_data.SubsetRandomSampler(range(ends[i], ends[i + 1])))
        for i in range(4)
    }
    privacy = {"noise_multiplier": 2.0, "delta": 1e-5, "batch_size": 9}
    with loop(tmp_path, block(privacy=privacy), module(), loaders) as made:
        made.run()
        for i, silo in made.silos.items():
            charges = list(Ledger.open(tmp_path / f"silo-{i}" / "ledger.jsonl", append=False))
            assert {charge.release.rate for charge in charges} == {9 / sizes[i]}
            assert silo.epsilon == pytest.approx(server_view(charges, PLD(), 1e-5).epsilon)
            assert silo._host.train[i].labels.numel() == sizes[i]
        assert made.silos[2].epsilon > made.silos[1].epsilon  # 30 records pay more than 60


def test_records_that_are_not_numbers_are_the_same_when_read_again():
    x = X[:4].clone()
    x[1, 2] = math.nan
    with pytest.raises(DataError, match="not finite"):
        silo_of(Pairs(x, Y[:4]), module())
