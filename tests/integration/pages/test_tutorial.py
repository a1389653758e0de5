"""docs/tutorial.md is executed: its file is written, and its commands run in one shell."""

import os
import re
import sys
from pathlib import Path

import pytest

from tests.support.processes import Process
from tests.support.servers import free_port, redis_binary

TUTORIAL = Path(__file__).resolve().parents[3] / "docs" / "tutorial.md"

# The reader's clicks: **Replay all**, then **Replay**.
REPLAY = """
import sys, urllib.request

headers = {"Sec-Fetch-Site": "same-origin"}
address = f"http://127.0.0.1:{sys.argv[1]}/actions/replay?queue=orders"
urllib.request.urlopen(urllib.request.Request(address, b"", headers))
"""


def commands():
    """Yield the tutorial's parts of one script; each Python block is a part of shop.py."""
    fenced = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    for language, block in fenced.findall(TUTORIAL.read_text("utf-8")):
        yield block if language == "sh" else f"cat >> shop.py <<'END'\n\n{block}END\n"


@pytest.mark.slow
def test_the_tutorial_does_what_it_says(tmp_path):
    """No order is lost to a killed worker, a rejected task or an unreachable broker."""
    ports = {number: str(free_port()) for number in ("6390", "6391", "5580")}
    page = ports["5580"]
    (tmp_path / "replay.py").write_text(REPLAY)
    script = "\n".join(["set -ex", *commands()])
    script = re.sub(r"^(python3 -m venv|pip install) .*\n", "", script, flags=re.MULTILINE)
    script = re.sub("6390|6391", lambda number: ports[number[0]], script)
    script = script.replace("redis-server --port", f"{redis_binary()} --port")
    script = script.replace("reliq web ", f"reliq web --port {page} ")
    ready = f"until python ../replay.py {page}; do sleep 1; done"
    script = script.replace("until grep -x 500", f"{ready}\nuntil grep -x 500")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    reader = Process(
        ["bash", "-c", script],
        log_path=tmp_path / "terminal.log",
        env={**os.environ, "PATH": path},
        cwd=tmp_path,
    )
    try:
        assert 0 == reader.wait(480), reader.tail()
    finally:
        reader.kill_group()
    shown = reader.log().splitlines()
    assert ["100", "500", "100"] == [line for line in shown if re.fullmatch(r"\d+", line)]
    assert 2 == sum("all balanced" in line for line in shown)
