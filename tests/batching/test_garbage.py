"""Python's garbage collection pauses while programs are made, and continues afterwards."""

import gc
import multiprocessing
import threading
import weakref

import pytest

from stretto.batching.compiled import uncollected

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


def test_it_goes_on_behind_the_last_block():
    with uncollected():
        assert not gc.isenabled()
        with pytest.raises(ValueError, match="inner"), uncollected():
            raise ValueError("inner")
        assert not gc.isenabled()
    assert gc.isenabled()


def test_blocks_of_several_threads():
    inside, done = threading.Event(), threading.Event()

    def hold() -> None:
        with uncollected():
            inside.set()
            done.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait(30)
    with uncollected():
        pass
    assert not gc.isenabled()
    done.set()
    thread.join(30)
    assert gc.isenabled()


def test_it_stays_off_where_the_user_has_turned_it_off():
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_child_of_fork_begins_with_none_inside():
    def in_child() -> None:
        assert gc.isenabled()
        with uncollected():
            assert not gc.isenabled()
        assert gc.isenabled()

    with uncollected():
        child = multiprocessing.get_context("fork").Process(target=in_child)
        child.start()
        child.join(20)
        child.kill()
    assert child.exitcode == 0
    assert gc.isenabled()


def test_what_was_made_inside_is_collected_later():
    class Node:
        pass

    with uncollected():
        node = Node()
        node.itself = node  # pyright: ignore[reportAttributeAccessIssue]
        ended = weakref.ref(node)
        del node
    assert ended() is not None  # the end of a block collects nothing
    gc.collect()
    assert ended() is None


def test_what_others_have_frozen_stays_so():
    gc.collect()
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        with uncollected():
            pass
        assert gc.get_freeze_count() == frozen
    finally:
        gc.unfreeze()
