"""An adapter for a toy platform, held to the contract of adapters: pytest adapter.py

The platform, Post, carries bytes between names. It may lose them, deliver them twice or late, and shows them to nobody
else; who a letter is from it knows for certain, as a platform with accounts or TLS certificates does.
"""

import contextlib
import hashlib
from collections import defaultdict, deque

from dpfl_plugin.adapters import Message, Server, Silo
from dpfl_plugin.adapters.replies import failure, refusal
from dpfl_plugin.errors import BusyError, DpflError, LimitError, MessageError
from dpfl_plugin.testing.wire import WireContract


class Post:
    """The platform: a box of letters for each name."""

    def __init__(self):
        self.boxes = defaultdict(deque)

    def send(self, sender, receiver, data):
        self.boxes[receiver].append((sender, data))

    def fetch(self, receiver):
        """(sender, data) of each letter that has come since."""
        letters, self.boxes[receiver] = self.boxes[receiver], deque()
        return letters


# The adapter: what a server and a silo do with letters.


def packed(message):
    """With a checksum: this platform may damage what it carries."""
    data = message.to_bytes()
    return hashlib.sha256(data).digest() + data


def unpacked(data, limit=None):
    if limit is not None and len(data) > limit + 32:
        raise MessageError(f"it has {len(data)} bytes, where {limit + 32} are enough.")
    if hashlib.sha256(data[32:]).digest() != data[:32]:
        raise MessageError("it was damaged on the way.")
    return Message.from_bytes(data[32:])


class PostServer:
    """Asks by letter, and takes what comes until it has waited long enough."""

    def __init__(self, post, server: Server):
        self.post, self.server = post, server

    def ask(self):
        """Whether there is a further round."""
        message = self.server.begin()
        for silo in () if message is None else self.server.asked:
            self.post.send("server", f"silo-{silo}", packed(message))
        return message is not None

    def take(self):
        for sender, data in self.post.fetch("server"):
            silo = int(sender.removeprefix("silo-"))  # as the platform says, and not the letter
            try:
                self.server.receive(silo, unpacked(data, self.server.max_bytes))
            except MessageError as error:
                self.server.receive(silo, error)

    def end(self):
        """After as long as the project says; whoever is missing by then is named in the log."""
        self.server.end()


class PostSilo:
    """Answers each letter of the server; opened for each, so that nothing is held between letters."""

    def __init__(self, post, silo, agreement, open_silo):
        self.post, self.silo, self.agreement, self.open_silo = post, silo, agreement, open_silo

    def work(self):
        for sender, data in self.post.fetch(f"silo-{self.silo}"):
            if sender == "server":
                self.post.send(f"silo-{self.silo}", "server", packed(self.answer(unpacked(data))))

    def answer(self, message):
        try:
            with self.open_silo() as opened:
                assert isinstance(opened, Silo)
                return opened.answer(message)
        except LimitError as error:  # the server is told why, in words that tell nothing of records
            return refusal(self.agreement, self.silo, message, error)
        except BusyError:
            raise
        except (DpflError, OSError) as error:
            print(f"silo {self.silo}: {error}")  # it stays here: it may tell of records
            return failure(self.agreement, self.silo, message)


# What holds it to the contract: one round of all that, with whatever happens to letters on their way.


class Federation:
    def __init__(self, parties):
        self.post, self.server = Post(), parties.server()
        self.at_server = PostServer(self.post, self.server)
        self.silos = [
            PostSilo(self.post, silo, parties.agreement, lambda silo=silo: parties.silo(silo))
            for silo in range(parties.agreement.num_silos)
        ]

    def round(self, carry):
        if not self.at_server.ask():
            return False
        for silo in self.silos:
            silo.work()
        for sender, data in self.post.fetch("server"):
            for delivered in carry(int(sender.removeprefix("silo-")), data):
                self.post.send(sender, "server", delivered)
        self.at_server.take()
        self.at_server.end()
        return True


class TestPost(WireContract):
    @contextlib.contextmanager
    def federation(self, parties):
        made = Federation(parties)
        yield made
        made.server.close()
