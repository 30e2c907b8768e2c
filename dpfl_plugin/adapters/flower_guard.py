"""What a node tells of what goes wrong there: Flower sends the server the text of each exception of a client app."""

from __future__ import annotations

import logging

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

from dpfl_plugin.errors import DpflError
from dpfl_plugin.runs.public_errors import text_of, words_for_server

LOG = logging.getLogger("flwr")
FAILED = 2  # Flower's code for a client app that raised an exception


class GuardedApp(ClientApp):
    """A client app that no exception leaves: the project's functions see records, on which it may depend what they
    raise, and where. That stays in the log here; the answer to the server is the same whatever it was, but for what an
    owner refuses.
    """

    def __call__(self, message: Message, context: Context) -> Message:
        try:
            return super().__call__(message, context)
        except BaseException as error:
            if _ends_process(error):
                raise
            return failed(message, error)


def failed(message: Message, error: BaseException) -> Message:
    """The answer of a node where this came up."""
    what = f"a message of type {message.metadata.message_type!r}"
    trace = None if isinstance(error, DpflError | OSError) else error
    LOG.error("dpfl: %s failed here: %s", what, text_of(error), exc_info=trace)
    return Message(Error(FAILED, f"{what}: {words_for_server(error)}"[:1000]), reply_to=message)


def _ends_process(error: BaseException) -> bool:
    """Whether somebody asked for the end, by a signal or as Flower does: it has to come, and has no text to be sent."""
    asked = isinstance(error, KeyboardInterrupt | SystemExit)
    return asked and all(one is None or isinstance(one, int) for one in error.args)
