"""DP-SCAFFOLD over plain files: a platform of its own, in one file.

    python federation.py            a server and three silos on this machine, each a process of its own
    python federation.py server     or one by one, in as many terminals; also by a folder that machines share
    python federation.py silo 0     on the machine of who owns the data, who has set limits (docs/limits.md)

The server leaves a message in the mailbox, every silo that it asks leaves an answer. A silo, or the server, may be
killed and started again at any time: it goes on from its own folder. Whoever may write to the mailbox can take a
silo's place: give each silo a folder of its own there, by the rights of the file system.
"""

import argparse
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits

from dpfl_plugin.adapters import Message, Server, Silo, agree
from dpfl_plugin.errors import DpflError, MessageError

# The project: its model, its data, and what silos and server agree on.

NUM_SILOS = 3
SETTINGS = {
    "rounds": 20,
    "algorithm": {"name": "scaffold", "local_steps": 10, "local_lr": 1.0},
    "privacy": {"epsilon": 6, "delta": 1e-4, "record_rate": 0.2},
}
END = "end"


def make_model() -> torch.nn.Module:
    model = torch.nn.Linear(64, 10)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    return model


def records() -> tuple[np.ndarray, np.ndarray]:
    x, y = load_digits(return_X_y=True)
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32), y


# The platform.


def put(path: Path, data: bytes) -> None:
    """Nobody ever sees half a file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(data)
    os.replace(temporary, path)


def get(path: Path, limit: int) -> Message:
    if path.stat().st_size > limit:
        raise MessageError(f"it has {path.stat().st_size} bytes, where {limit} are enough.")
    return Message.from_bytes(path.read_bytes())


def serve(folder: Path, patience: float) -> None:
    model, mailbox = make_model(), folder / "mailbox"
    mailbox.mkdir(parents=True, exist_ok=True)
    (mailbox / END).unlink(missing_ok=True)
    server = Server(agree(SETTINGS, num_silos=NUM_SILOS, model=model), model, folder / "server")
    while (message := server.begin()) is not None:
        answers = {silo: mailbox / f"silo-{silo}-{message.header['tag']}" for silo in server.asked}
        put(mailbox / "message", message.to_bytes())
        until = time.monotonic() + patience
        while server.missing and time.monotonic() < until:
            for silo in server.missing:
                if answers[silo].exists():
                    try:
                        server.receive(silo, get(answers[silo], server.max_bytes))
                    except MessageError as error:
                        server.receive(silo, error)
            time.sleep(0.02)
        done = server.end()
        for answer in answers.values():  # not before: a server that is started again asks by the same tag
            answer.unlink(missing_ok=True)
        if done and server.rounds % 5 == 0:
            server.write_to(model)
            x, y = records()
            accuracy = float((model(torch.from_numpy(x)).argmax(1).numpy() == y).mean())
            print(f"round {server.rounds}: accuracy {accuracy:.3f}", flush=True)
    put(mailbox / END, b"")
    print(server.status, {silo: said["epsilon"] for silo, said in server.summary()["silos"].items()}, flush=True)


def work(silo: int, folder: Path, simulation: bool) -> None:
    (x, y), mine = records(), slice(silo, None, NUM_SILOS)
    model, mailbox, answered = make_model(), folder / "mailbox", ""
    agreement = agree(SETTINGS, num_silos=NUM_SILOS, model=model)
    own = folder / f"silo-{silo}" if simulation else None  # else where the owner's limits say
    where = "simulation" if simulation else "deployment"
    with Silo(agreement, silo, model, (x[mine], y[mine]), own, surroundings=where) as answers:
        while not (mailbox / END).exists():
            time.sleep(0.02)
            if not (mailbox / "message").exists():
                continue
            message = Message.from_bytes((mailbox / "message").read_bytes())
            if message.header["tag"] == answered:
                continue
            try:
                answer = answers.answer(message)
            except DpflError as error:
                logging.error("%s", error)
                answer = answers.failure(message)
            answered = message.header["tag"]
            put(mailbox / f"silo-{silo}-{answered}", answer.to_bytes())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("role", nargs="?", choices=["all", "server", "silo"], default="all")
    parser.add_argument("id", nargs="?", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("run"))
    parser.add_argument("--patience", type=float, default=600, help="seconds that the server waits for silos")
    parser.add_argument("--simulation", action="store_true", help="the silo's data are nobody's: no limits are needed")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    torch.set_num_threads(1)
    if args.role == "server":
        serve(args.folder, args.patience)
    elif args.role == "silo":
        work(args.id, args.folder, args.simulation)
    else:
        again = [sys.executable, __file__, "--simulation", "--folder", str(args.folder)]
        silos = [subprocess.Popen([*again, "silo", str(silo)]) for silo in range(NUM_SILOS)]
        serve(args.folder, args.patience)
        sys.exit(max(silo.wait() for silo in silos))


if __name__ == "__main__":
    main()
