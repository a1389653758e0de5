import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliq.message.delivery_tag import (
    BATCH,
    derived_tag,
    is_of_job,
    is_tag,
    new_tag,
    published_ms,
    rank_of,
    tag_like,
)

PACKAGE = Path(__file__).parents[2] / "reliq"


@given(st.integers(0, 255))
def test_a_tag_says_its_rank_and_its_age(rank):
    """Scripts and operators can read the rank and the publish time from a tag."""
    before = int(time.time() * 1000)
    tag = new_tag(rank)
    assert rank == rank_of(tag)
    assert before <= published_ms(tag) <= int(time.time() * 1000)
    assert f"{rank:02x}" == tag[:2]


@pytest.mark.parametrize("rank", [0, 9, 255])
def test_a_tag_has_one_form(rank):
    """A tag is lower-case hexadecimal of one length."""
    tag = new_tag(rank)
    assert 30 == len(tag)
    assert set(tag) <= set("0123456789abcdef")


def test_the_tag_of_a_job_differs_by_its_last_character():
    """The tag of a job is a tag, and is recognised as that of a job."""
    tags = {job: new_tag(5, {BATCH: "b"} if job else {}) for job in (False, True)}
    assert all(map(is_tag, tags.values()))
    assert {True: True, False: False} == {job: is_of_job(tag) for job, tag in tags.items()}


@pytest.mark.parametrize("headers", [{}, {BATCH: "b"}])
def test_the_tag_of_a_copy(headers):
    """The tag of a copy is unique, and has the rank and the mark of the first one."""
    tag = new_tag(7, headers)
    copies = [tag_like(tag) for _ in range(3)]
    assert len({tag, *copies}) == 4
    assert [(7, bool(headers))] * 3 == [(rank_of(copy), is_of_job(copy)) for copy in copies]


def test_the_derived_tag_of_a_job():
    """Each process derives the same tag; another text gives another tag."""
    tag = new_tag(7, {BATCH: "b"})
    first, again, other = (derived_tag(tag, about) for about in ("q\n1", "q\n1", "q\n2"))
    assert first == again != other
    assert (True, 7, True) == (is_tag(first), rank_of(first), is_of_job(first))
    assert published_ms(tag) == published_ms(first)


def test_the_layout_stands_in_one_place():
    """No other file has a pattern of a tag, or the place of the publisher in one."""
    copies = re.compile(
        r"\{30\}|\b15, ?24\b|\b14:24\b|> 24\b|tag, 1, 2\b|tag\[:2\]|"
        r"[\"']j[\"'] *(==|in)|== *[\"']j[\"']"
    )
    found = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*")
        if path.suffix in {".py", ".lua"} and copies.search(path.read_text("utf-8"))
    }
    assert {"message/delivery_tag.py"} == found


def test_no_tag_comes_twice():
    """Tags are distinct, however fast they are generated."""
    tags = [new_tag(5) for _ in range(20_000)]
    assert len(tags) == len(set(tags))


def test_tags_sort_by_rank_then_by_time():
    """A tag of a lower rank sorts first, then the older one."""
    early = [new_tag(rank) for rank in (255, 9, 0)]
    time.sleep(0.002)
    late = [new_tag(rank) for rank in (0, 255, 9)]
    expected = [early[2], late[0], early[1], late[2], early[0], late[1]]
    assert expected == sorted(early + late)


def test_a_forked_child_makes_other_tags():
    """Parent and child generate tags with different process parts."""
    code = """
import os
from reliq.message.delivery_tag import new_tag
reader, writer = os.pipe()
if os.fork() == 0:
    os.write(writer, new_tag(5).encode())
    os._exit(0)
os.wait()
child, parent = os.read(reader, 99).decode(), new_tag(5)
assert child[14:24] != parent[14:24], (child, parent)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
