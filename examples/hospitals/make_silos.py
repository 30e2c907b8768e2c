"""Writes silos/*.csv and new-patients.csv: the breast cancer data that come with scikit-learn, dealt to six hospitals.

Values are as they were measured; some cells are empty, as in real tables.
"""

import csv
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer

HOSPITALS = ["north", "south", "east", "west", "coast", "hills"]
NEW = 9  # patients that no hospital has seen

data = load_breast_cancer()
names = [name.replace(" ", "_") for name in data.feature_names[:10]]
values = data.data[:, :10]
# Small tumours go to the first hospitals and large ones to the last, with some mixing: hospitals differ.
rng = np.random.default_rng(0)
order = np.argsort(data.data[:, 0] + rng.normal(0, 3, len(values)))
asked, known = order[:: len(order) // NEW][:NEW], np.setdiff1d(order, order[:: len(order) // NEW][:NEW])
known = order[np.isin(order, known)]


def write(path: str, rows: np.ndarray, *, labels: bool) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["patient_id", *names, *(["diagnosis"] if labels else [])])
        for row in rows:
            cells = [f"{value:.5g}" for value in values[row]]
            if rng.random() < 0.05:
                cells[-3] = ""  # concave points were not counted
            writer.writerow([row, *cells, *([data.target_names[data.target[row]]] if labels else [])])


Path("silos").mkdir(exist_ok=True)
for hospital, rows in zip(HOSPITALS, np.array_split(known, 6), strict=True):
    write(f"silos/{hospital}.csv", rows, labels=True)
write("new-patients.csv", asked, labels=False)
