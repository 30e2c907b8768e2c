import torch

from dpfl_plugin.core.average import WeightedSum


def test_any_stacking_gives_the_same_bits():
    generator = torch.Generator().manual_seed(0)
    messages = torch.randn(7, 33, generator=generator) * 10 ** torch.randn(7, 1, generator=generator)
    weights = [1 / 7] * 7
    results = []
    for size in (1, 2, 3, 7):
        total = WeightedSum()
        for first in range(0, 7, size):
            total.add({"model": messages[first : first + size]}, weights[first : first + size])
        results.append(total.total["model"])
    assert all(torch.equal(results[0], result) for result in results)
    assert torch.allclose(results[0], messages.mean(dim=0), rtol=1e-5)


def test_weights_and_names():
    total = WeightedSum()
    total.add({"a": torch.tensor([[1.0], [2.0]]), "b": torch.tensor([[3.0], [5.0]])}, [0.25, 0.75])
    assert total.total["a"].item() == 1.75
    assert total.total["b"].item() == 4.5


def test_inputs_are_not_changed():
    message = torch.ones(1, 2)
    total = WeightedSum()
    total.add({"a": message}, [2.0])
    total.add({"a": message}, [2.0])
    assert torch.equal(message, torch.ones(1, 2))
