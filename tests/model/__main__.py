"""Command: ``python -m tests.model --examples 20000 --seed 7 --broker redis``."""

from __future__ import annotations

import argparse
import random
import time

from tests.model.brokers import BROKERS, running
from tests.model.run import MACHINES, run


def main() -> None:
    """Run the model; a failure prints the shortest failing trace."""
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--examples", type=int, default=2000, help="default 2000")
    parser.add_argument("--steps", type=int, default=20, help="of each example; default 20")
    parser.add_argument("--seed", type=int, default=None, help="default: another each time")
    parser.add_argument("--broker", choices=BROKERS, default="fakeredis")
    parser.add_argument("--machine", choices=MACHINES, default="queues")
    arguments = parser.parse_args()
    seeded = random.randrange(2**32) if arguments.seed is None else arguments.seed
    print(
        f"--machine {arguments.machine} --broker {arguments.broker} "
        f"--examples {arguments.examples} --seed {seeded}",
        flush=True,
    )
    began = time.monotonic()
    with running(arguments.broker) as broker:
        run(
            broker,
            examples=arguments.examples,
            steps=arguments.steps,
            seeded=seeded,
            machine=arguments.machine,
        )
    print(f"{arguments.examples} examples in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
