"""Six hospitals train one model; each holds its own file. Messages are files in a folder that all of them can reach.

    python federation.py server                        at the coordinator, which has no records
    python federation.py hospital 0 silos/north.csv    at the first hospital, within its limits; 0 to 5

It goes on from where it was when anybody is stopped and started again.
"""

import os
import sys
import time
from pathlib import Path

import torch
import yaml

import dpfl_plugin as dpfl
from dpfl_plugin.adapters import Message, Server, Silo, agree
from dpfl_plugin.data.schema import TableSchema
from dpfl_plugin.errors import DpflError, MessageError

MAILBOX = Path("mailbox")
NUM_HOSPITALS = 6
SCHEMA = TableSchema.parse(yaml.safe_load(Path("hospitals.yaml").read_text())["data"]["schema"])  # known to all
SETTINGS = {  # proposed by the server; every hospital compares them with its own limits
    "rounds": 40,
    "algorithm": {"name": "scaffold", "local_steps": 10, "local_lr": 0.5},
    "privacy": {"epsilon": 4, "delta": 1e-4, "record_rate": 0.2},
}


def make_model() -> torch.nn.Module:
    model = torch.nn.Linear(len(SCHEMA.features), len(SCHEMA.class_names))
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    return model


def records(file: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A hospital's own records: features (n, d), each row to norm 1, and classes (n,)."""
    found = dpfl.read_tables(file, SCHEMA)
    return torch.nn.functional.normalize(torch.from_numpy(found.features)), torch.from_numpy(found.labels)


def put(path: Path, data: bytes) -> None:
    """Write a file that nobody ever sees half written."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(data)
    temporary.replace(path)


def serve() -> None:
    MAILBOX.mkdir(exist_ok=True)
    (MAILBOX / "end").unlink(missing_ok=True)
    model = make_model()
    server = Server(agree(SETTINGS, num_silos=NUM_HOSPITALS, model=model), model, Path("server"))
    while (message := server.begin()) is not None:
        put(MAILBOX / "message", message.to_bytes())
        asked = time.monotonic()
        while server.missing:
            for hospital in server.missing:
                path = MAILBOX / f"{hospital}-{message.header['tag']}"
                if path.exists():
                    try:
                        server.receive(hospital, Message.from_bytes(path.read_bytes(), server.max_bytes))
                    except MessageError as error:
                        server.receive(hospital, error)
            time.sleep(0.05)
            if server.missing and time.monotonic() > asked + 30:
                print("waiting for hospitals", server.missing, flush=True)
                asked = time.monotonic()
        server.end()
    put(MAILBOX / "end", b"")
    server.write_to(model)
    torch.save(model.state_dict(), "model.pt")
    print(f"{server.status} after {server.rounds} rounds; the model is in model.pt")


def answer(hospital: int, file: str) -> None:
    model, answered = make_model(), ""
    agreement = agree(SETTINGS, num_silos=NUM_HOSPITALS, model=model)
    with Silo(agreement, hospital, model, records(file)) as silo:
        print(silo.begins, flush=True)
        while not (MAILBOX / "end").exists():
            time.sleep(0.05)
            if not (MAILBOX / "message").exists():
                continue
            message = Message.from_bytes((MAILBOX / "message").read_bytes())
            if message.header["tag"] == answered:
                continue
            try:
                reply = silo.answer(message)
            except DpflError as error:
                print(error, flush=True)  # it stays here: it may tell of records
                reply = silo.failure(message)
            answered = message.header["tag"]
            put(MAILBOX / f"{hospital}-{answered}", reply.to_bytes())


if __name__ == "__main__":
    if sys.argv[1] == "server":
        serve()
    else:
        try:
            answer(int(sys.argv[2]), sys.argv[3])
        except DpflError as error:  # limits that are missing, or lower than what is proposed
            sys.exit(f"hospital {sys.argv[2]}: {error}")
