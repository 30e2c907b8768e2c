"""The adapter in FedML's own environment: in one process, on MPI ranks, and as silos over GRPC and MPI."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file

from dpfl_plugin.adapters import Server, agree
from dpfl_plugin.privacy.ledger import Ledger
from tests.adapters.federation import SimulatedSilo, draws
from tests.adapters.reference import NOISY, check_noise

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("DPFL_FEDML") or ROOT / ".venv-fedml") / "bin"
HERE = Path(__file__).parent
OFFLINE = ROOT / "examples" / "fedml_existing_project" / "offline"  # no phoning home, and a torchvision
PATIENCE = 540.0  # for what takes a minute on a quiet machine
needs_fedml = pytest.mark.skipif(
    not (BIN / "python").exists(), reason="FedML has no environment here: make it with launchers/env fedml"
)
pytestmark = [pytest.mark.fedml, pytest.mark.slow, needs_fedml]
SETTINGS = {
    "rounds": 4,
    "seed": 5,
    "algorithm": {"name": "scaffold", "local_steps": 3, "local_lr": 0.5},
    "privacy": {"noise_multiplier": 1.5, "delta": 1e-5, "record_rate": 0.25},
}


def free_ports(count: int) -> int:
    """The first of so many free ports in a row."""
    while True:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            first = one.getsockname()[1]
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for port in range(first, first + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first


class Project:
    """The project in a folder, with silos of unequal sizes."""

    def __init__(self, folder, training_type, backend, model="linear", per_round=3, **settings):
        self.folder, self.started, self.training_type = folder, [], training_type
        (folder / "data").mkdir()
        rng = np.random.default_rng(3)
        for silo in range(3):
            size = 25 + 9 * silo
            x = rng.standard_normal((size, 4)) + silo
            np.savez(folder / "data" / f"{silo}.npz", x=x, y=rng.integers(0, 3, size))
        self.port = free_ports(4)
        for rank in range(1, 4):  # of the owner of the data of each rank
            path = folder / f"limits-{rank}.yaml"
            limits = {
                "folder": str(folder / f"owner-{rank}"),
                "epsilon": 1000,
                "delta": 1e-3,
                "min_records": 25,
                "num_classes": 3,
            }
            path.write_text(yaml.safe_dump(limits))
            path.chmod(0o600)
        rows = [f"{rank},{rank},127.0.0.1,{self.port + rank}" for rank in range(4)]
        (folder / "ips.csv").write_text("\n".join(["eid,rank,grpc_server_ip,grpc_server_port", *rows]) + "\n")
        common = {"training_type": training_type, "random_seed": 0}
        if training_type == "cross_silo":
            common |= {"scenario": "horizontal", "using_mlops": False, "config_version": "release"}
        sections = {
            "common_args": common,
            "data_args": {"dataset": "own", "data_cache_dir": str(folder / "data"), "partition_method": "hetero"},
            "model_args": {"model": model},
            "train_args": {
                "federated_optimizer": "FedAvg",
                "client_id_list": None,
                "client_num_in_total": 3,
                "client_num_per_round": per_round,
                "comm_round": 4,
                "epochs": 1,
                "batch_size": 8,
                "client_optimizer": "sgd",
                "learning_rate": 0.1,
                "weight_decay": 0.0,
            },
            "validation_args": {"frequency_of_the_test": 2},
            "device_args": {"worker_num": 3, "using_gpu": False, "gpu_mapping_key": "mapping_default"},
            "comm_args": {"backend": backend, "grpc_ipconfig_path": str(folder / "ips.csv")},
            "tracking_args": {"enable_tracking": False, "enable_wandb": False, "log_file_dir": str(folder / "log")},
            "dpfl_args": {"dpfl": {**SETTINGS, "folder": str(folder / "silos"), **settings}},
        }
        (folder / "fedml_config.yaml").write_text(yaml.safe_dump(sections, sort_keys=False))

    def start(self, *command, draw="same", **more):
        """``draw``: names seeded noise, in a simulation."""
        environment = {
            **os.environ,
            "HOME": str(self.folder),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": f"{OFFLINE}{os.pathsep}{ROOT}",
            "DPFL_TEST_DRAW": draw if self.training_type == "simulation" else "",
            "DPFL_TEST_LIMITS": str(self.folder / "limits-{rank}.yaml"),
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
            **more,
        }
        with (self.folder / f"log-{len(self.started)}").open("wb") as log:
            one = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        self.started.append(one)
        return one

    @property
    def config(self):
        return self.folder / "fedml_config.yaml"

    def run(self, **more):
        """In one process."""
        self.wait([self.start(str(BIN / "python"), str(HERE / "app" / "main.py"), "--cf", str(self.config), **more)])

    def mpirun(self, ranks):
        main = [str(BIN / "python"), "-m", "mpi4py", str(HERE / "app" / "main.py"), "--cf", str(self.config)]
        self.wait([self.start(str(BIN / "mpirun"), "--bind-to", "none", "-n", str(ranks), *main)])

    def processes(self, **signals):
        """Of cross-silo GRPC: the server, and the silos of ranks 1 to 3; ``signals`` by rank, see app/main.py."""
        server = self.process(0)
        self.until(lambda: listens(self.port) or server.poll() is not None)
        return [server, *(self.process(rank, DPFL_TEST_SIGNAL=signals.get(f"rank_{rank}", "")) for rank in (1, 2, 3))]

    def process(self, rank, **more):
        role = ["--rank", str(rank), "--role", "client" if rank else "server", "--run_id", "7"]
        main = str(HERE / "app" / "main.py")
        return self.start(str(BIN / "python"), main, "--cf", str(self.config), *role, **more)

    def wait(self, running):
        self.until(lambda: all(one.poll() is not None for one in running))
        assert all(one.returncode == 0 for one in running), self.said()

    def until(self, condition):
        last = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < last, self.said()
            time.sleep(0.2)

    def said(self):
        return "\n".join(path.read_text(errors="replace")[-3000:] for path in sorted(self.folder.glob("log-*")))

    def end(self, *running):
        for one in running or self.started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)
            one.wait()


def listens(port):
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


@contextlib.contextmanager
def project(*args, **more):
    made = Project(*args, **more)
    try:
        yield made
    finally:
        made.end()


def make_model(kind):
    layers = {
        "linear": lambda: torch.nn.Linear(4, 3),
        "mlp": lambda: torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)),
        "wide": lambda: torch.nn.Sequential(torch.nn.Linear(4, 5000), torch.nn.Tanh(), torch.nn.Linear(5000, 3)),
    }
    model = layers[kind]().double()
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.copy_(torch.linspace(-0.5, 0.5, parameter.numel()).reshape(parameter.shape) + 0.01 * number)
    return model


def data_of(folder):
    found = [np.load(folder / "data" / f"{silo}.npz") for silo in range(3)]
    return [(torch.from_numpy(one["x"]), torch.from_numpy(one["y"])) for one in found]


def plain_loop(folder, kind):
    """The same by a loop, in this process."""
    model = make_model(kind)
    agreement = agree(SETTINGS, num_silos=3, model=model)
    server, silos = Server(agreement, model), []
    for silo, data in enumerate(data_of(folder)):
        silos.append(SimulatedSilo(agreement, silo, model, data, folder / "loop" / str(silo), draw=draws(5, "same")))
    for round in range(4):
        message = server.begin(sampled(round))
        for silo in server.asked:
            server.receive(silo, silos[silo].answer(message))
        assert server.end()
    for silo in silos:
        silo.close()
    return server.model


def final_model(folder):
    return load_file(folder / "silos" / "server" / "checkpoint" / "state.safetensors")["server.model"]


def check_states(folder):
    """That after all rounds the server's control variate is the mean of the silos', as what each sent counted."""
    states = [load_file(path)["staged/control"][0] for path in folder.glob("owner-*/silo-*/state.safetensors")]
    assert len(states) == 3
    control = load_file(folder / "silos" / "server" / "checkpoint" / "state.safetensors")["server.control"]
    assert control.norm() > 1e-3
    torch.testing.assert_close(control, torch.stack(states).mean(0), rtol=0, atol=1e-12)


def test_a_cross_silo_job_over_mpi_carries_what_silos_send(tmp_path):
    """So do silos over GRPC, below."""
    with project(tmp_path, "cross_silo", "MPI") as made:
        made.mpirun(4)
        said = made.said()
    assert (summary_of(tmp_path)["status"], summary_of(tmp_path)["refused"]) == ("done", []), said
    check_states(tmp_path)
    check_charges(tmp_path, lambda round: [0, 1, 2])
    logs = "".join(path.read_text(errors="replace") for path in tmp_path.glob("log-*"))
    assert all(f"silo {silo}: agreed epsilon" in logs for silo in range(3)), logs


@pytest.mark.statistical
def test_the_noise_in_fedml_is_that_of_the_settings(tmp_path):
    """See `tests.adapters.reference.check_noise`."""
    one = {"rounds": 1, "algorithm": {"name": "scaffold", "local_steps": 1, "local_lr": 0.5}}
    with project(tmp_path, "simulation", "sp", "wide", privacy=NOISY, **one) as made:
        made.run(draw="")
    check_noise(final_model(tmp_path), make_model("wide"), data_of(tmp_path))


def summary_of(folder):
    path = folder / "silos" / "server" / "summary.json"
    return json.loads(path.read_text()) if path.exists() else {"rounds": 0}


def charges_of(folder, silo):
    """From where its owner keeps them, or in a simulation the project."""
    places = [*folder.glob(f"owner-*/silo-{silo}-*"), *folder.glob(f"silos/silo-{silo}")]
    (place,) = places
    return list(Ledger.open(place / "ledger.jsonl", append=False))


def test_silos_that_are_killed_are_waited_for_and_go_on_from_their_folders(tmp_path):
    """One before its training, one when its answer is charged and kept but not sent: that one is sent, at no cost."""
    with project(tmp_path, "cross_silo", "GRPC", "mlp") as made:
        server, *silos = made.processes(rank_2="1 asked SIGKILL", rank_3="2 answered SIGKILL")
        for rank, rounds, charged in ((2, 1, 1), (3, 2, 3)):
            made.until(lambda rank=rank: silos[rank - 1].poll() is not None or server.poll() is not None)
            assert (silos[rank - 1].returncode, server.poll()) == (-signal.SIGKILL, None), made.said()
            assert summary_of(tmp_path)["rounds"] == rounds
            assert len(charges_of(tmp_path, rank - 1)) == charged
            silos[rank - 1] = made.process(rank)
        made.wait([server, *silos])
    summary = summary_of(tmp_path)
    assert (summary["status"], summary["rounds"], summary["refused"]) == ("done", 4, [])
    check_states(tmp_path)
    for silo in range(3):
        charges = charges_of(tmp_path, silo)
        assert {charge.silo for charge in charges} == {silo} and len(charges) == 4
    logs = "".join(path.read_text(errors="replace") for path in tmp_path.glob("log-*"))
    assert all(f"silo {silo}: agreed epsilon" in logs for silo in range(3)), logs


def test_a_server_that_is_killed_and_started_again_goes_on_with_the_silos_that_wait_and_nothing_is_charged_twice(
    tmp_path,
):
    """In the first round, where FedML's servers ask several times; one silo was about to answer when it was killed."""
    with project(tmp_path, "cross_silo", "GRPC") as made:
        server, *silos = made.processes(rank_3="0 asked SIGSTOP")
        log = tmp_path / "log-0"
        made.until(lambda: log.read_text(errors="replace").count("add_model. index =") == 2)
        made.end(server)
        server = made.process(0)
        made.until(lambda: listens(made.port) or server.poll() is not None)
        # Asked again, it stops again: send_signal gives None till it has ended.
        made.until(lambda: silos[2].poll() is not None or silos[2].send_signal(signal.SIGCONT))
        made.wait([server, *silos])
        said = made.said()
    assert (summary_of(tmp_path)["status"], summary_of(tmp_path)["rounds"]) == ("done", 4), said
    assert summary_of(tmp_path)["refused"] == []
    assert [len(charges_of(tmp_path, silo)) for silo in range(3)] == [4, 4, 4]
    assert "its request is sent again" in (tmp_path / "log-4").read_text()
    assert "dpfl: the run is over: done after 4 rounds" in (tmp_path / "log-4").read_text()


def test_a_silo_that_is_gone_when_the_server_sends_ends_the_job_which_goes_on_when_all_are_started_again(tmp_path):
    """As of 0.9.6: the server meets with UNAVAILABLE, and ends; the other silos with it."""
    with project(tmp_path, "cross_silo", "GRPC") as made:
        server, *silos = running = made.processes(rank_3="1 asked SIGSTOP")
        log = tmp_path / "log-0"
        made.until(lambda: log.read_text(errors="replace").count("add_model. index = 0") == 2)
        made.end(silos[0])
        silos[2].send_signal(signal.SIGCONT)
        made.until(lambda: server.poll() is not None)
        assert server.returncode == 1 and "StatusCode.UNAVAILABLE" in log.read_text(errors="replace")
        made.until(lambda: None not in [one.poll() for one in silos[1:]])
        made.end(*running)
        assert summary_of(tmp_path)["rounds"] == 2
        made.wait(made.processes())
    assert (summary_of(tmp_path)["status"], summary_of(tmp_path)["rounds"]) == ("done", 4)
    check_states(tmp_path)
    for silo in range(3):  # the request of the round that was cut came again, and was charged once
        assert [charge.round for charge in charges_of(tmp_path, silo)] == [0, 1, 2, 3]


def test_silos_refuse_a_plain_server_and_it_ends_with_them(tmp_path):
    with project(tmp_path, "cross_silo", "GRPC") as made:
        server = made.process(0, DPFL_TEST_PLAIN="yes")
        made.until(lambda: listens(made.port) or server.poll() is not None)
        silos = [made.process(rank) for rank in (1, 2, 3)]
        made.until(lambda: None not in [one.poll() for one in (server, *silos)])
        said = made.said()
    assert [one.returncode for one in (server, *silos)] == [0, 1, 1, 1], said
    assert said.count("training with it would not be private. It is refused.") >= 3
    assert not list(tmp_path.rglob("ledger.jsonl"))


def test_a_silo_that_cannot_begin_ends_everybody_with_the_reason_before_any_is_asked(tmp_path):
    """Its owner set no limits: the server waited for it without end, and the other silos for the server."""
    with project(tmp_path, "cross_silo", "GRPC") as made:
        server = made.process(0)
        made.until(lambda: listens(made.port) or server.poll() is not None)
        silos = [made.process(1), made.process(2), made.process(3, DPFL_TEST_LIMITS="")]
        made.until(lambda: None not in [one.poll() for one in (server, *silos)])
        said, logs = made.said(), [path.read_text(errors="replace") for path in sorted(tmp_path.glob("log-*"))]
    assert [one.returncode for one in (server, silos[2])] == [1, 1], said
    why = "silo of rank 3 cannot take part: the owner of the data has set no limits"
    assert all(f"the server ended the run: {why}" in log for log in logs[1:3]) and why in logs[0], said
    assert "no limits are set for these data" in logs[3]
    assert not list(tmp_path.rglob("ledger.jsonl"))


def sampled(round):
    return sorted(np.random.RandomState(round).choice(range(3), 2, replace=False).tolist())


def check_charges(folder, asked):
    """That each silo was charged for the rounds that it was asked in."""
    for silo in range(3):
        charges = sorted((charge.silo, charge.round) for charge in charges_of(folder, silo))
        assert charges == [(silo, round) for round in range(4) if silo in asked(round)]


@pytest.mark.parametrize(("mode", "model"), [("sp", "linear"), ("mpi", "mlp")])
def test_silos_that_fedml_picks_give_the_result_of_a_plain_loop_wherever_they_run(tmp_path, mode, model):
    """Each keeps its state."""
    with project(tmp_path, "simulation", "sp" if mode == "sp" else "MPI", model, per_round=2) as made:
        made.run() if mode == "sp" else made.mpirun(3)
        said = made.said()
    assert (summary_of(tmp_path)["status"], summary_of(tmp_path)["refused"]) == ("done", []), said
    torch.testing.assert_close(final_model(tmp_path), plain_loop(tmp_path, model), rtol=0, atol=1e-12)
    check_charges(tmp_path, sampled)


def test_where_fedml_can_be_imported():
    """The adapter on FedML's own types, what FedML does without it, and the contract of adapters."""
    path = f"{OFFLINE}{os.pathsep}{ROOT}"
    command = [str(BIN / "python"), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "filterwarnings=default"]
    done = subprocess.run(
        [*command, f"--rootdir={ROOT}", "inside.py", "theirs.py", "wire.py"],
        cwd=HERE,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]


def test_the_example_runs_offline_and_says_what_its_page_says(tmp_path):
    environment = {**os.environ, "DPFL_FEDML": str(BIN.parent), "DPFL_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    run = ROOT / "examples" / "fedml_existing_project" / "run"
    done = subprocess.run([str(run), "private"], env=environment, capture_output=True, text=True)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-5000:]
    *_, accuracy = re.findall(r"'test_acc': (0\.\d+)", said)
    assert 0.35 < float(accuracy) < 0.95  # noise is fresh each time
    for silo in range(5):
        stated = json.loads((tmp_path / ".dpfl" / "digits" / f"silo-{silo}" / "ledger.json").read_text())
        assert 7.9 < stated["views"]["server"]["epsilon"] <= 8
