"""Parts: a transport as what stands below it sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from .link import Linked

if TYPE_CHECKING:
    from ..options import Options
    from .declarations import Declarations
    from .deliverer import Deliverer
    from .encoder import Encoder
    from .eventloop import EventLoop
    from .failback import Failback
    from .isolated import IsolatedDelivery
    from .reserver import Reserver
    from .turns import Turns
    from .unroutable import UnroutableMessages


class Parts(Linked, Protocol):
    """The link, and the parts that share it. Each is made once, with the transport."""

    options: Options
    declarations: Declarations
    turns: Turns
    isolated: IsolatedDelivery
    reserver: Reserver
    deliverer: Deliverer
    loop: EventLoop
    failback: Failback
    encoder: Encoder
    unroutable: UnroutableMessages
