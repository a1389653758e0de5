"""The processor time of a run by user."""

from __future__ import annotations

import subprocess
import sys
import time

from tests.chaos.processor import Processor


def test_what_a_process_used_is_noted_with_the_minute_and_its_group():
    """Each minute has the processor time of each group, whether its processes compute or sleep."""
    spin = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ntime.sleep(60)"
    busy = subprocess.Popen([sys.executable, "-c", spin], stdout=subprocess.PIPE)
    idle = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        processor = Processor()
        busy.stdout.readline()
        processor.look(1.0, {"busy": [busy.pid], "idle": [idle.pid]})
        processor.look(1.5, {"busy": [busy.pid], "idle": [idle.pid]})  # too early: not sampled
        time.sleep(0.1)
        processor.look(61.0, {"busy": [busy.pid], "idle": [idle.pid]})
    finally:
        for process in (busy, idle):
            process.kill()
            process.communicate()
    first, second = processor.minutes()
    assert 0.4 <= first["busy"]
    assert first["idle"] < 0.3
    assert second["busy"] < 0.1
    assert first["machine"] >= first["busy"] - 0.1
    assert {"busy", "idle", "machine", "stolen", "suite"} == set(second)
