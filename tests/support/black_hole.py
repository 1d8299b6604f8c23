"""An address at which nothing ever answers: its packets are dropped, as those of a host that is down are."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

_FILLING = 4


@contextmanager
def black_hole() -> Iterator[str]:
    """The URL. A listener whose queue is full: the kernel drops whoever asks for another connection."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        for _ in range(_FILLING):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(address)
        yield f"http://127.0.0.1:{address[1]}"
