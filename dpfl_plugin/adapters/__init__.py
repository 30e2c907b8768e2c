"""Other platforms: they carry messages between a `Server` and its `Silo`s, and decide nothing.

agreement  what both sides know and have to agree on
message    what travels: named flat vectors and a JSON header; nothing is pickled
records    users' own data loaders as records
silo       one silo's process: trains by the private oracle, charges its ledger, then answers
server     plans rounds, checks what comes in, aggregates
"""

from dpfl_plugin.adapters.agreement import Agreement, agree
from dpfl_plugin.adapters.message import Message
from dpfl_plugin.adapters.server import Server
from dpfl_plugin.adapters.silo import Silo

__all__ = ["Agreement", "Message", "Server", "Silo", "agree"]
