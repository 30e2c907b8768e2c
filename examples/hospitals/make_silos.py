"""Writes silos/*.csv: the breast cancer data that come with scikit-learn, dealt to six hospitals."""

import csv
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer

HOSPITALS = ["north", "south", "east", "west", "coast", "hills"]
# The largest value that each measurement can take, as its instrument or its unit says: public, not read from patients.
TOP = [30, 40, 200, 2500, 0.2, 0.4, 0.5, 0.2, 0.3, 0.1]

data = load_breast_cancer()
names = [name.replace(" ", "_") for name in data.feature_names[:10]]
scaled = np.clip(data.data[:, :10] / TOP, 0, 1) - 0.5
# Small tumours go to the first hospitals and large ones to the last, with some mixing: hospitals differ.
rng = np.random.default_rng(0)
order = np.argsort(data.data[:, 0] + rng.normal(0, 3, len(scaled)))

Path("silos").mkdir(exist_ok=True)
for hospital, rows in zip(HOSPITALS, np.array_split(order, 6), strict=True):
    with open(f"silos/{hospital}.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["patient_id", *names, "diagnosis"])
        for row in rows:
            writer.writerow([row, *scaled[row].round(4), data.target_names[data.target[row]]])
