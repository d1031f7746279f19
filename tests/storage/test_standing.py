"""When a database whose files went may be closed: only when nothing that was acknowledged is lost by it."""

import pytest

from storage import standing
from storage.paths import Paths
from storage.writing import WritingStore
from tests.storage.writes import fact, one


@pytest.mark.parametrize(("told", "closed"), [((-1, -1), False), ((7, 5), False), ((7, 7), True), ((0, 0), True)])
def test_a_removed_wal_is_closed_only_when_all_of_it_is_copied(
    store: WritingStore, paths: Paths, monkeypatch: pytest.MonkeyPatch, told: tuple[int, int], closed: bool
) -> None:
    """(-1, -1) is what SQLite says while another process copies: then nothing is known."""
    one(store, fact("mira", "the zebra sleeps"))
    assert store.may_be_closed()
    monkeypatch.setattr(standing, "passive_checkpoint", lambda db: told)
    wal = paths.database.with_name(paths.database.name + "-wal")
    wal.rename(wal.with_name("moved"))
    assert store.may_be_closed() is closed
