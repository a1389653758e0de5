"""Posts: commands that are written at once, and whose replies are read later by any thread.

Many threads share one pipeline (:mod:`.pipeline`). One thread at a time drives: it waits for
replies and calls their handlers, in order and without the lock. Other waiting threads poll every
few ms; threads that only read leave it to the driver. No thread waits for another one in a
handler. A handler may therefore use any connection, even one whose handlers use this one.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from functools import partial
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from ..errors import ReliqError, again
from ..forks import Part, register
from .pipeline import POLL_AGAIN_S, Post

if TYPE_CHECKING:
    from collections.abc import Callable

    from .pipeline import Pipeline

# The threads that are in a handler of any connection; a child has none.
_in_handler: set[int] = set()
register(Part("posts", forget=_in_handler.clear))


class Posts:
    """The threads that post over one pipeline, and the handlers that they call."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._driver = 0

    @property
    def read_by_another(self) -> bool:
        """Whether another thread waits for replies and reads them."""
        return self._driver not in {0, threading.get_ident()}

    def post(self, data: bytes, post: Post) -> bool:
        """Write *data*, the packed command of *post*; wait until the socket has taken it.

        Returns False without writing if there is no connection. Raises BrokerTimeout if an earlier
        reply is overdue (:meth:`check`), and BrokerUnavailable if the command could not be
        written. A later failure is its reply.
        """
        pipeline = self._pipeline
        now = monotonic()
        if pipeline.pending and now - pipeline.since >= pipeline.timeout_s:
            self.check()
        stream = pipeline.stream
        if stream and stream.login is not None and stream.is_outdated():
            hidden = Post(("AUTH",), None, 0.0, stream.login.report)  # its repr shows no token
            with suppress(ReliqError):  # its frames show the token; there is no connection now
                self.post(stream.renewal(), hidden)
        try:
            stream, end = pipeline.write(data, post, now)
        except BaseException:
            self._drive(self._hand_out)
            raise
        if stream is None:
            if pipeline.arrived:
                self._drive(self._hand_out)
            return False
        if stream.unsent:
            self.wait_for(
                lambda: pipeline.stream is not stream or stream.written - len(stream.unsent) >= end
            )
        return True

    def receive(self) -> None:
        """Read without waiting and call the handlers; raises BrokerUnavailable.

        Leaves reading to a driving thread: the background loop must not block with it.
        """
        pipeline = self._pipeline
        stream = pipeline.stream
        if stream is not None or pipeline.arrived:
            self._drive(self._receive)
            if stream is not None and pipeline.stream is not stream and pipeline.failure:
                raise again(pipeline.failure)

    def _receive(self) -> None:
        self._pipeline.take()
        self._hand_out()

    def check(self) -> None:
        """Raise BrokerTimeout if the reply to the oldest command is overdue.

        Does nothing if data has arrived, or if a thread drives, which checks the time itself.
        """
        pipeline = self._pipeline
        if (
            pipeline.pending
            and monotonic() - pipeline.since >= pipeline.timeout_s
            and not self._driver
            and (error := pipeline.fail_if_late()) is not None
        ):
            self._drive(self._hand_out)
            raise again(error)

    def wait(self, timeout_s: float = inf, number: int | None = None) -> None:
        """Wait for the replies to all posts so far, and for their handlers.

        Waits at most *timeout_s*, plus the time of handlers that already run. Raises
        BrokerUnavailable if the connection fails meanwhile. *number*: wait only up to this post.
        """
        pipeline = self._pipeline
        if not pipeline.waiting:
            return
        stream = pipeline.stream
        ends_at = inf if timeout_s == inf else monotonic() + timeout_s
        self.wait_for(partial(self.are_over, number or pipeline.number), ends_at, for_all=True)
        if stream is not None and pipeline.stream is not stream and pipeline.failure:
            raise again(pipeline.failure)

    def are_over(self, number: int) -> bool:
        """Whether the handlers of all posts up to *number* have returned.

        Handlers that this thread is in do not count: they would wait for themselves.
        """
        pipeline = self._pipeline
        if not (pipeline.pending or pipeline.arrived):
            return True
        # A post that was sent again is behind others.
        for post in (*pipeline.pending, *pipeline.arrived):
            if post.number <= number and not (post.begun and self._driver == threading.get_ident()):
                return False
        return True

    def hang_up(self, error: ReliqError) -> None:
        """Close the connection; *error* is the reply to all commands without one."""
        if self._pipeline.hang_up(error):
            self._drive(self._hand_out)

    # -- one thread drives

    def _drive(self, do: Callable[[], object]) -> bool:
        """Call *do* as the one driving thread; return False if another thread drives.

        The end of the turn is written twice: an interrupt may hit the first one.
        """
        me = threading.get_ident()  # looked up late: gevent counts greenlets
        if self._driver == me:  # in a handler of a reply or of a signal
            do()
            return True
        try:
            try:
                with self._pipeline.lock:
                    if not self._driver:
                        self._driver = me
                if self._driver != me:
                    return False
                do()
            finally:
                if self._driver == me:
                    self._driver = 0
        finally:
            if self._driver == me:
                self._driver = 0
        if self._undelivered:  # another thread has left them to this one
            self._drive(self._hand_out)
        return True

    def wait_for(
        self, done: Callable[[], bool], ends_at: float = inf, *, for_all: bool = False
    ) -> None:
        """Drive, or wait while another thread drives, until *done* or *ends_at*.

        A reply's handler makes *done* true. *for_all*: do not wait in a handler while another
        thread drives.
        """
        while not self._drive(partial(self._go_on, done, ends_at)):
            if done() or (for_all and threading.get_ident() in _in_handler):
                return
            left_s = ends_at - monotonic()
            if left_s <= 0:
                return
            time.sleep(min(POLL_AGAIN_S, left_s))
            self._pipeline.take(reads=False)  # the driver may be in a handler

    def _go_on(self, done: Callable[[], bool], ends_at: float) -> None:
        """Wait for replies and call their handlers, until *done* or *ends_at*."""
        pipeline = self._pipeline
        while True:
            self._hand_out()
            if done():
                return
            left_s = inf if ends_at == inf else ends_at - monotonic()
            if left_s <= 0 or (pipeline.stream is None and not pipeline.pending):
                return
            pipeline.poll(left_s)

    @property
    def _undelivered(self) -> bool:
        """Whether a handler remains to be called; the driver removes posts without the lock."""
        arrived = self._pipeline.arrived
        try:
            return bool(arrived) and not arrived[-1].begun
        except IndexError:
            return False

    def _hand_out(self) -> None:
        """Call the handlers of the arrived replies, each once, in order; raises their errors."""
        if not self._undelivered:
            return
        arrived = self._pipeline.arrived
        me = threading.get_ident()
        within = me in _in_handler
        try:
            _in_handler.add(me)
            while arrived:
                post = arrived[0]
                if post.begun:  # its handler has called this method
                    post = next((item for item in arrived.copy() if not item.begun), post)
                    if post.begun:
                        break
                try:
                    post.begun = True
                    post.handler(post.reply)
                finally:
                    arrived.remove(post)
        except ReliqError:
            raise
        except BaseException:
            # A post may not know of its reply, and must not wait for it.
            self._pipeline.fail_interrupted()
            while self._undelivered:
                with suppress(BaseException):  # the first error is raised
                    self._hand_out()
            raise
        finally:
            if not within:
                _in_handler.discard(me)
