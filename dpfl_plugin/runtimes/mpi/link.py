"""How messages travel between ranks. The only module that calls MPI."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from dpfl_plugin.core.vectors import Vectors
from dpfl_plugin.runtimes.mpi.wire import Header, decode, encode

HEADER, VECTOR, PEER = 1, 2, 3  # tags
PIECE: Final = 2**28  # entries in one MPI call, far below the 2^31 that older libraries can count


class Transfer(Protocol):
    """Something on its way."""

    def done(self) -> bool:
        """Whether it has arrived, or its buffer may be used again; also moves it on."""
        ...


class Link(Protocol):
    """A rank's connections. Vectors between two ranks, and headers between two ranks, arrive in the order sent."""

    rank: int
    size: int
    outlives: bool
    """Whether the others go on, and hear of it, when a rank dies: where not, the launcher ends them all."""

    def gone(self) -> set[int]:
        """Ranks that are known to have died. What is on its way from them is never done."""
        ...

    def send(self, to: int, header: Header) -> None:
        """Returns at once."""
        ...

    def poll(self) -> tuple[int, Header] | None:
        """The next header that has arrived, and the rank that sent it; None if there is none."""
        ...

    def tell_peer(self, to: int, header: Header) -> None:
        """From one silo rank to another: rank 0 has no part in it. Returns at once."""
        ...

    def hear_peer(self, source: int) -> Header | None:
        """The next that another silo rank told this one; None if nothing has arrived."""
        ...

    def push(self, to: int, value: Tensor) -> Transfer: ...

    def pull(self, source: int, into: Tensor) -> Transfer: ...

    def broadcast(self, value: Tensor) -> Transfer:
        """From rank 0 to all, into ``value``; every rank has to call it."""
        ...

    def reduce(self, value: Tensor, into: Tensor | None) -> Transfer:
        """The sum over all ranks, at rank 0 ``into``; every rank has to call it."""
        ...


class Patience:
    """Waits between two looks: not at all at first, then longer and longer, so that idle ranks leave the cores alone.

    Args:
        spins: looks before the first sleep.
        longest: seconds of the longest sleep.
    """

    def __init__(self, spins: int = 200, longest: float = 0.002) -> None:
        self._spins, self._longest = spins, longest
        self.reset()

    def reset(self) -> None:
        self._looks, self._seconds = 0, 2e-5

    def wait(self) -> None:
        self._looks += 1
        if self._looks <= self._spins:
            time.sleep(0)  # whoever else wants the core goes first
            return
        time.sleep(self._seconds)
        self._seconds = min(self._longest, 1.2 * self._seconds)


def all_done(transfers: Sequence[Transfer]) -> bool:
    return False not in {transfer.done() for transfer in transfers}  # each is moved on


def push_all(link: Link, to: int, vectors: Vectors) -> list[Transfer]:
    return [link.push(to, value) for value in vectors.values()]


def pull_all(link: Link, source: int, into: Vectors) -> list[Transfer]:
    return [link.pull(source, value) for value in into.values()]


class _Pending:
    """MPI requests with the memory that they use; ``finish`` runs once, when all are complete.

    Args:
        died: called where one fails, because the other rank died; then it is never done.
    """

    def __init__(
        self,
        requests: list[Any],
        held: object,
        died: Callable[[Exception], None],
        finish: Callable[[], object] | None = None,
    ) -> None:
        self._requests, self._held, self._died, self._finish = requests, held, died, finish
        self._failed = False

    def done(self) -> bool:
        if not self._failed:
            try:
                self._requests = [request for request in self._requests if not request.Test()]
            except Exception as error:  # mpi4py's own class is known to nobody who has not imported it
                self._died(error)
                self._failed = True
        if self._requests or self._failed:
            return False
        if self._finish is not None:
            self._finish()
        self._finish = self._held = None
        return True


class MpiLink:
    """The link over an MPI communicator.

    Args:
        comm: of mpi4py.
        staged: whether vectors on a GPU travel by way of pinned host memory; by default where MPI is not CUDA-aware.
    """

    def __init__(self, comm: Any, *, staged: bool | None = None) -> None:
        from mpi4py import MPI

        self._mpi, self._comm = MPI, comm
        self.rank, self.size = int(comm.rank), int(comm.size)
        self.outlives, self._gone = fault_tolerant()[1], set[int]()
        self._staged = not cuda_aware() if staged is None else staged
        self._sent: list[_Pending] = []

    def send(self, to: int, header: Header) -> None:
        self._send(to, header, HEADER)

    def tell_peer(self, to: int, header: Header) -> None:
        assert 0 not in (to, self.rank), "rank 0 has no part in what silo ranks tell each other"
        self._send(to, header, PEER)

    def _send(self, to: int, header: Header, tag: int) -> None:
        data = encode(header)
        self._sent = [pending for pending in self._sent if not pending.done()]
        started = self._started(lambda piece: self._comm.Isend(piece, dest=to, tag=tag), [data, self._mpi.BYTE])
        self._sent.append(_Pending(started, data, self._died))

    def poll(self) -> tuple[int, Header] | None:
        # A silo rank hears of nobody but rank 0, and need not know which of the others died.
        return self._receive(self._mpi.ANY_SOURCE if self.rank == 0 else 0, HEADER)

    def hear_peer(self, source: int) -> Header | None:
        found = self._receive(source, PEER)
        return None if found is None else found[1]

    def _receive(self, source: int, tag: int) -> tuple[int, Header] | None:
        status = self._mpi.Status()
        try:
            message = self._comm.Improbe(source=source, tag=tag, status=status)
            if message is None:
                return None
            data = bytearray(status.Get_count(self._mpi.BYTE))
            message.Recv([data, self._mpi.BYTE])
        except self._mpi.Exception as error:
            self._died(error)
            return None
        return int(status.source), decode(data)

    def flush(self, seconds: float) -> None:
        """Wait until all headers have left, for so long at most."""
        end = time.monotonic() + seconds
        while self._sent and time.monotonic() < end:
            self._sent = [pending for pending in self._sent if not pending.done()]

    def gone(self) -> set[int]:
        return self._gone

    def _died(self, error: Exception) -> None:
        """A call failed: note who died; raise the error again if it is another one."""
        if not self.outlives or not isinstance(error, self._mpi.Exception):
            raise error
        self._comm.Ack_failed()  # what waits for any rank waits for those that live from here on
        failed = self._comm.Get_failed()
        ranks = self._mpi.Group.Translate_ranks(failed, range(failed.size), self._comm.group)
        if not ranks:
            raise error
        self._gone.update(map(int, ranks))

    def _started(self, call: Callable[[Any], Any], buffer: Any) -> list[Any]:
        """The request of a call; one that is never done if the other rank has died."""
        try:
            return [call(buffer)]
        except self._mpi.Exception as error:
            self._died(error)
            return [_Never()]

    def push(self, to: int, value: Tensor) -> Transfer:
        return self._start(value, lambda piece: self._comm.Isend(piece, dest=to, tag=VECTOR), reads=True)

    def pull(self, source: int, into: Tensor) -> Transfer:
        return self._start(into, lambda piece: self._comm.Irecv(piece, source=source, tag=VECTOR), writes=True)

    def broadcast(self, value: Tensor) -> Transfer:
        at_root = self.rank == 0
        return self._start(value, lambda piece: self._comm.Ibcast(piece, root=0), reads=at_root, writes=not at_root)

    def reduce(self, value: Tensor, into: Tensor | None) -> Transfer:
        if into is None:
            return self._start(value, lambda piece: self._comm.Ireduce(piece, None, root=0), reads=True)
        into.copy_(value)
        return self._start(into, lambda piece: self._comm.Ireduce(self._mpi.IN_PLACE, piece, root=0), True, True)

    def _start(self, value: Tensor, call: Callable[[Any], Any], reads: bool = False, writes: bool = False) -> Transfer:
        """Start ``call`` on the memory of ``value``, or on a copy of it on the host."""
        if not value.is_contiguous():
            raise AssertionError("a vector has to lie in one piece")
        host = value.detach().view(-1)
        if value.is_cuda and self._staged:
            host = torch.empty(value.numel(), dtype=value.dtype, pin_memory=True)
            if reads:
                host.copy_(value.view(-1))
        if host.is_cuda:
            torch.cuda.synchronize(host.device)  # MPI knows nothing of kernels that still write to it
        buffers = [_buffer(piece) for piece in host.split(PIECE)] if host.numel() else []
        finish = (lambda: value.view(-1).copy_(host)) if writes and host.data_ptr() != value.data_ptr() else None
        started = [request for buffer in buffers for request in self._started(call, buffer)]
        return _Pending(started, (value, host), self._died, finish)


class _Never:
    """In place of a request to a rank that has died."""

    def Test(self) -> bool:
        return False


def _buffer(piece: Tensor) -> Any:
    """What mpi4py takes without a copy."""
    return piece if piece.is_cuda else piece.numpy()


def fault_tolerant() -> tuple[bool, bool]:
    """(whether the MPI library can outlive a rank: Open MPI 5 with ULFM; whether this job was started so)."""
    from mpi4py import MPI

    library = ctypes.CDLL(MPI.__file__)  # as in `cuda_aware`
    if not hasattr(library, "ompi_ftmpi_enabled"):
        return False, False
    return True, bool(ctypes.c_bool.in_dll(library, "ompi_ftmpi_enabled").value)


def cuda_aware() -> bool:
    """Whether the MPI library says that it takes pointers to GPU memory."""
    from mpi4py import MPI

    library = ctypes.CDLL(MPI.__file__)  # whose symbols include those of the MPI library that it is linked to
    if hasattr(library, "MPIX_Query_cuda_support"):  # Open MPI
        return bool(library.MPIX_Query_cuda_support())
    if hasattr(library, "MPIX_GPU_query_support"):  # MPICH, Intel MPI
        answer = ctypes.c_int(0)
        library.MPIX_GPU_query_support(ctypes.c_int(0), ctypes.byref(answer))  # 0: CUDA
        return bool(answer.value)
    return False
