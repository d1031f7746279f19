"""What passes between a service and its processes for recalls arrives as it was sent."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import storage.errors
from storage.errors import Rejection
from storage.paths import Paths
from storage.recaller import LENGTH, Seen, command, framed
from storage.search.failures import IndexFailure
from storage.writing import WritingStore

REFUSALS = [one for one in vars(storage.errors).values() if isinstance(one, type) and issubclass(one, Rejection)]


def sent(message: object) -> object:
    """What comes out at the other end."""
    frame = framed(message)
    assert LENGTH.unpack_from(frame)[0] == len(frame) - LENGTH.size
    return pickle.loads(frame[LENGTH.size :])


@pytest.mark.parametrize("refusal", [*(one("because") for one in REFUSALS), *(one() for one in REFUSALS)])
def test_every_refusal_arrives_whole(refusal: Rejection) -> None:
    seen = sent(Seen(7, None, refusal))
    assert isinstance(seen, Seen)
    assert isinstance(seen.refusal, Rejection)
    assert (type(seen.refusal), seen.refusal.detail, seen.number) == (type(refusal), refusal.detail, 7)


@pytest.mark.parametrize("damaged", [True, False])
def test_a_failure_of_the_index_arrives_whole(damaged: bool) -> None:
    seen = sent(Seen(7, None, IndexFailure("CorruptError: page 3", damaged)))
    assert isinstance(seen, Seen)
    assert isinstance(seen.refusal, IndexFailure)
    assert (str(seen.refusal), seen.refusal.damaged) == ("CorruptError: page 3", damaged)


def test_a_database_that_cannot_be_read_ends_it_with_one_line(store: WritingStore, paths: Paths) -> None:
    """On the service's stderr, where no text of a memory belongs."""
    away = Path(f"{paths.database}.away")
    paths.database.rename(away)
    started = [*command(paths.database, refuse_unregistered=False), "0"]
    done = subprocess.run(started, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20, check=False)
    away.rename(paths.database)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "storage.recaller: storage_unavailable\n")
    assert started[0] == sys.executable
