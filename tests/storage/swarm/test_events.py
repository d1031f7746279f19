"""Lines of events.jsonl: what is one, what was cut off, and the instants that tell events apart."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storage.errors import FileFailed, InvalidRequest, TooLarge
from storage.swarm import missions
from storage.swarm.events import Event, parse, stamp, torn
from storage.swarm.folders import open_folder
from storage.swarm.missions import Missions
from tests.storage.swarm.files import BUILT

NOW_S = 1_780_000_000.0
LINE = Event(at=BUILT, type="note", worker="w", mission="m", summary="s", request_id="r").line()


def test_an_event_is_read_as_it_was_written() -> None:
    detail = {"state": "DONE", "decisions": ["a", "b"], "deep": {"x": [1, None, True, 0.5]}}
    event = Event(at=BUILT, type="note", worker="w", mission="m", assignment="a", content="c\nd", detail=detail)
    assert list(parse(event.line(), "w", "m")) == [event] == [event.as_read()]


@pytest.mark.parametrize("value", [math.nan, math.inf, {1, 2}, b"bytes", object()])
def test_what_json_cannot_hold_is_refused(value: object) -> None:
    with pytest.raises(InvalidRequest, match="event"):
        Event(at=BUILT, type="note", worker="w", detail={"x": value}).line()


def test_a_detail_that_is_nested_too_deeply_is_refused() -> None:
    deep: dict[str, object] = {}
    for _ in range(100_000):
        deep = {"x": deep}
    with pytest.raises(InvalidRequest, match="event"):
        Event(at=BUILT, type="note", worker="w", detail=deep).as_read()


def test_whose_an_event_is_the_place_says_and_not_the_line() -> None:
    line = b'{"at":"2026-01-01T00:00:00.000Z","type":"note","workerId":"../../x","missionId":"a --> \\n## b"}\n'
    (event,) = parse(line, "w", "m")
    assert (event.worker, event.mission) == ("w", "m")


@pytest.mark.parametrize(
    ("at", "read"),
    [
        ("2026-04-28T00:00:00.000Z", "2026-04-28T00:00:00.000Z"),
        ("2026-04-28T02:00:00+02:00", "2026-04-28T00:00:00.000Z"),
        ("2026-04-28T00:00:00.123456", "2026-04-28T00:00:00.123Z"),
        ("0900-01-01T00:00:00Z", "0900-01-01T00:00:00.000Z"),
        ("../../../etc/passwd", None),
        ("9999-12-31T23:59:59-23:00", None),
        ("yesterday", None),
        ("", None),
    ],
)
def test_an_instant_of_another_program_names_a_day_or_the_line_is_no_event(at: str, read: str | None) -> None:
    found = [event.at for event in parse(f'{{"at":"{at}","type":"note"}}'.encode(), "w", "m")]
    assert found == ([] if read is None else [read])


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"my note",
        b'{"at":1,"type":"note"}',
        b'{"at":"2026-01-01","type":"x"}',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
    ids=lambda line: repr(line[:20]),
)
def test_lines_that_are_no_events_are_left_out(line: bytes) -> None:
    assert [event.summary for event in parse(LINE + line + b"\n" + LINE, "w", "m")] == ["s", "s"]


def test_every_beginning_of_a_line_is_torn_and_the_whole_is_not() -> None:
    for length in range(1, len(LINE) - 1):
        assert torn(LINE + LINE[:length]) == len(LINE)
        assert torn(LINE[:length]) == 0
    for whole in (b"", LINE, LINE + LINE[:-1], LINE[:-1]):
        assert torn(whole) is None


@pytest.mark.parametrize(
    "line", [b"a person's remark", b'{"type":"note"', b"\n ", b"#", b'{"at": "2026-01-01", "type": "decision"}']
)
def test_a_line_that_a_person_has_not_ended_is_not_torn(line: bytes) -> None:
    assert torn(LINE + line) is None


def test_instants_are_later_than_the_event_before() -> None:
    assert stamp(NOW_S, None, ()) == BUILT
    assert stamp(NOW_S, BUILT, ()) == "2026-05-28T20:26:40.001Z"
    assert stamp(NOW_S, "2026-05-28T20:27:39.999Z", ()) == "2026-05-28T20:27:40.000Z"
    assert stamp(NOW_S, "2026-05-28T20:26:39.000Z", ()) == BUILT


def test_an_event_of_the_future_does_not_take_the_others_along() -> None:
    for future in ("2026-05-28T21:00:00.000Z", "9999-12-31T23:59:59.999Z"):
        assert stamp(NOW_S, future, {future}) == BUILT
        assert stamp(NOW_S, future, {future, BUILT}) == "2026-05-28T20:26:40.001Z"


def test_an_event_of_another_program_is_seen_though_it_came_at_the_last_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = LINE.replace(b'"s"', b'"foreign"')
    folder = open_folder(tmp_path, ())
    assert folder is not None
    with folder:
        known = Missions()
        mission = known.append(folder, known.of(("w", "m"), folder), Event(at=BUILT, type="note", worker="w"))
        append = folder.append

        def late(name: str, record: bytes) -> object:
            with (tmp_path / name).open("ab") as other:
                other.write(foreign)
            return append(name, record)

        monkeypatch.setattr(folder, "append", late)
        mission = known.append(folder, mission, Event(at=BUILT, type="note", worker="w", summary="ours"))
    assert [event.summary for event in mission.events] == [None, "foreign", "ours"]


def test_an_event_is_written_though_the_log_cannot_be_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise FileFailed("injected")

    folder = open_folder(tmp_path, ())
    assert folder is not None
    with folder:
        known = Missions()
        mission = known.of(("w", "m"), folder)
        (tmp_path / "events.jsonl").write_bytes(LINE.replace(b'"s"', b'"foreign"'))
        with monkeypatch.context() as patched:
            patched.setattr(folder, "read", fails)
            mission = known.append(folder, mission, Event(at=BUILT, type="note", worker="w", summary="ours"))
        assert [event.summary for event in mission.events] == ["ours"]
        mission = known.of(("w", "m"), folder)
    assert [event.summary for event in mission.events] == ["foreign", "ours"]


def test_the_missions_in_memory_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(missions, "_MISSIONS_KEPT", 8)
    monkeypatch.setattr(missions, "_EVENTS_KEPT", 20)
    monkeypatch.setattr(missions, "_KEPT_WHATEVER", 2)
    known = Missions()

    def write(name: str, events: int) -> None:
        folder = open_folder(tmp_path, (name,), make=True)
        assert folder is not None
        with folder:
            for _ in range(events):
                mission = known.of(("w", name), folder)
                at = stamp(NOW_S, mission.last_at, mission.instants)
                known.append(folder, mission, Event(at=at, type="note", worker="w"))

    for number in range(30):
        write(f"m{number}", 1)
    assert len(known._known) == 8
    write("large", 30)
    assert list(known._known) == [("w", "m29"), ("w", "large")]
    assert known._events == 31
    write("m1", 1)
    assert list(known._known) == [("w", "large"), ("w", "m1")]
    assert known._events == 32


def test_two_large_missions_that_take_turns_are_read_once_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(missions, "_EVENTS_KEPT", 1)
    parsed: list[bytes] = []

    def counted(content: bytes, *_: str) -> tuple[()]:
        parsed.append(content)
        return ()

    monkeypatch.setattr(missions, "parse", counted)
    known = Missions()
    for name in ("m0", "m1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "events.jsonl").write_bytes(LINE * 10)
    for number in range(10):
        folder = open_folder(tmp_path, (f"m{number % 2}",))
        assert folder is not None
        with folder:
            key = ("w", f"m{number % 2}")
            known.append(folder, known.of(key, folder), Event(at=BUILT, type="note", worker="w"))
    assert parsed == [LINE * 10] * 2


@pytest.mark.parametrize("tail", [LINE, LINE[:-1], LINE + LINE[:-5]], ids=["whole", "without its end", "torn"])
def test_of_a_log_that_has_grown_only_the_new_lines_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tail: bytes
) -> None:
    parsed: list[bytes] = []

    def counted(content: bytes, worker: str, mission: str | None) -> Iterator[Event]:
        parsed.append(content)
        return parse(content, worker, mission)

    monkeypatch.setattr(missions, "parse", counted)
    log = tmp_path / "events.jsonl"
    log.write_bytes(LINE * 3)
    folder = open_folder(tmp_path, ())
    assert folder is not None
    with folder:
        known = Missions()
        mission = known.append(folder, known.of(("w", "m"), folder), Event(at=BUILT, type="note", worker="w"))
        with log.open("ab") as other:
            other.write(tail)
        assert known.of(("w", "m"), folder) is mission
        mission = known.append(folder, mission, Event(at=BUILT, type="note", worker="w"))
        assert parsed == [LINE * 3, LINE]
        assert log.read_bytes().count(b"\n") == len(mission.events) == mission.summary._events == 6
        assert mission.version == folder.version("events.jsonl")


def test_a_log_that_was_edited_in_its_place_and_has_grown_is_read_anew(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    log.write_bytes(LINE)
    folder = open_folder(tmp_path, ())
    assert folder is not None
    with folder:
        known = Missions()
        known.of(("w", "m"), folder)
        with log.open("r+b") as editor:
            editor.write(LINE.replace(b'"s"', b'"t"') + LINE)
        assert [event.summary for event in known.of(("w", "m"), folder).events] == ["t", "s"]


def test_a_log_never_becomes_larger_than_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(missions, "EVENTS_BYTES_MAX", 3 * len(LINE))
    event = next(parse(LINE, "w", "m"))
    folder = open_folder(tmp_path, ())
    assert folder is not None
    with folder:
        known = Missions()
        for _ in range(3):
            known.append(folder, known.of(("w", "m"), folder), event)
        with pytest.raises(TooLarge, match=r"the log of m is full .* begin a new mission"):
            known.append(folder, known.of(("w", "m"), folder), event)
        assert len(Missions().of(("w", "m"), folder).events) == 3
        (tmp_path / "events.jsonl").write_bytes(LINE * 4)
        with pytest.raises(TooLarge, match="begin a new mission"):
            known.of(("w", "m"), folder)


@pytest.mark.parametrize("ending", [b"", b"\n"])
def test_a_log_without_a_last_line_end_goes_on_on_a_line_of_its_own(tmp_path: Path, ending: bytes) -> None:
    (tmp_path / "events.jsonl").write_bytes(LINE + LINE[:-1] + ending)
    folder = open_folder(tmp_path, ())
    assert folder is not None
    with folder:
        known = Missions()
        mission = known.append(folder, known.of(("w", "m"), folder), Event(at=BUILT, type="note", worker="w"))
    assert len(mission.events) == 3
    assert (tmp_path / "events.jsonl").read_bytes().count(b"\n") == 3


def test_an_event_is_searched_from_the_end() -> None:
    mission = missions.Mission("w", "m")
    instants = [f"2026-01-01T00:00:0{second}.000Z" for second in range(4)]
    for at in instants:
        mission.add(Event(at=at, type="note", worker="w"))
    since: Callable[[str | None], list[str]] = lambda at: [event.at for event in mission.since(at)]  # noqa: E731
    assert since(instants[1]) == instants[2:]
    assert since(instants[3]) == []
    assert since(None) == since("2025-01-01T00:00:00.000Z") == instants
