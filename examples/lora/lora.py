"""Low-rank adapters of a transformer of Hugging Face, by peft, trained across three silos with epsilon 4.

First the transformer learns half of the digits of scikit-learn, which stand for public data. At three silos scanners
are mounted askew, and it errs there. They train adapters of its attention and its last layer; all else of it stays.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from scipy.ndimage import rotate
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import ViTConfig, ViTForImageClassification

import dpfl_plugin as dpfl

SILOS = ("north", "east", "west")
ASKEW = 25  # degrees
FIELDS = dpfl.models.Fields(pixel_values=dpfl.models.Field((1, 8, 8)))  # the model is called with pixel_values=...


class Scans(Dataset[dict[str, Any]]):
    """Records as models of transformers take them: inputs by name, and a label."""

    def __init__(self, pixels: np.ndarray, labels: np.ndarray) -> None:
        self.pixels, self.labels = pixels, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"pixel_values": torch.from_numpy(self.pixels[index]), "labels": int(self.labels[index])}


def scans() -> tuple[Scans, dict[str, Scans]]:
    """(public ones, {silo: its own})"""
    data = load_digits()
    pixels, half = data.images[:, None].astype(np.float32) / 8 - 1, len(data.target) // 2
    turned = np.ascontiguousarray(rotate(pixels[half:], ASKEW, axes=(2, 3), reshape=False, order=1, cval=-1))
    own = data.target[half:]
    silos = {name: Scans(turned[i :: len(SILOS)], own[i :: len(SILOS)]) for i, name in enumerate(SILOS)}
    return Scans(pixels[:half], data.target[:half]), silos


def pretrained(public: Scans, epochs: int) -> ViTForImageClassification:
    """What public data taught. Yours comes from ``ViTForImageClassification.from_pretrained(..., FOLDER)``."""
    torch.manual_seed(0)
    config = ViTConfig(
        image_size=8,
        patch_size=2,
        num_channels=1,
        num_labels=10,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
    )
    model = ViTForImageClassification(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(epochs):
        for batch in DataLoader(public, batch_size=64, shuffle=True):
            optimizer.zero_grad()
            model(**batch).loss.backward()
            optimizer.step()
    return model.eval()


def adapted(network: nn.Module) -> dpfl.models.FieldsModel:
    """The same network, of which adapters of rank 4 and the last layer are trained."""
    config = LoraConfig(
        r=4,
        lora_alpha=8,
        lora_dropout=0.0,  # dropout draws from a generator that belongs to no silo: it is refused
        target_modules=["q_proj", "v_proj"],
        modules_to_save=["classifier"],
    )
    return dpfl.models.FieldsModel(get_peft_model(network, config), FIELDS, output="logits")


def size(model: nn.Module) -> tuple[int, int]:
    """(parameters that are trained, all)"""
    counts = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    return sum(count for count, trained in counts if trained), sum(count for count, _ in counts)


def accuracy(model: nn.Module, silos: dict[str, Scans]) -> float:
    """On all records of the silos, as only a simulation can measure it."""
    pixels, labels = (np.concatenate([getattr(one, key) for one in silos.values()]) for key in ("pixels", "labels"))
    with torch.no_grad():
        outputs = model(torch.from_numpy(pixels).flatten(1))
    return float((outputs.argmax(1).numpy() == labels).mean())


def main(arguments: list[str] | None = None) -> dpfl.Run:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--epochs", type=int, default=25, help="on public scans")
    parser.add_argument("--all", action="store_true", help="train all parameters, for comparison")
    parser.add_argument("--out", type=Path, default=Path("runs/lora"))
    options = parser.parse_args(arguments)
    public, silos = scans()
    network = pretrained(public, options.epochs)
    model = dpfl.models.FieldsModel(network, FIELDS, output="logits") if options.all else adapted(network)
    print("trained, clipped, noised and sent: {:,} of {:,} parameters".format(*size(model)))
    print(f"accuracy at the silos before: {accuracy(model, silos):.3f}")
    run = dpfl.train(
        dpfl.Federation.from_datasets(silos, fields=FIELDS, classes=list(range(10))),
        model=model,
        algorithm=dpfl.algorithms.MBSGD(lr=1.0),
        privacy=dpfl.Privacy(epsilon=4, delta=1e-3, clip_norm=0.5, sampler="full"),
        rounds=options.rounds,
        evaluation={"every": options.rounds},
        out=options.out,
    )
    print(run)
    return run


if __name__ == "__main__":
    main()
