"""Settings: flags over environment over file; a bad one is named; nothing but loopback is bound."""

from pathlib import Path

import pytest

from storage.errors import ConfigurationError
from transport import settings


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings of the developer's own."""
    for name in ("DB", "BIND", "CONFIG", "LOG_LEVEL"):
        monkeypatch.delenv(f"SOLOS_MEMORY_{name}", raising=False)


def test_a_flag_wins_over_the_environment_and_that_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "solos.toml"
    file.write_text('bind = "127.0.0.1:1"\nlog_level = "error"\ndb = "/from/file.db"\nallowed_hosts = ["memory.lan"]\n')
    monkeypatch.setenv("SOLOS_MEMORY_CONFIG", str(file))
    monkeypatch.setenv("SOLOS_MEMORY_BIND", "127.0.0.1:2")
    monkeypatch.setenv("SOLOS_MEMORY_LOG_LEVEL", "warning")
    loaded = settings.load({"bind": "127.0.0.1:3", "create": None})
    assert (loaded.bind, loaded.log_level, loaded.db) == ("127.0.0.1:3", "warning", Path("/from/file.db"))
    assert loaded.allowed_hosts == ("memory.lan",)


def test_host_names_may_stand_in_one_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOLOS_MEMORY_ALLOWED_HOSTS", "lab.local, memory.lan")
    assert settings.load({}).allowed_hosts == ("lab.local", "memory.lan")


@pytest.mark.parametrize(
    ("flags", "named"),
    [({"log_level": "loud"}, "log_level"), ({"create": "perhaps"}, "create"), ({"colour": "red"}, "colour")],
)
def test_a_setting_that_cannot_be_used_is_named(flags: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        settings.load(flags)


def test_a_missing_or_malformed_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOLOS_MEMORY_CONFIG", str(tmp_path / "none.toml"))
    with pytest.raises(ConfigurationError, match=r"none\.toml"):
        settings.load({})
    (tmp_path / "none.toml").write_text("bind = ")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        settings.load({})
    (tmp_path / "none.toml").write_text("colour = 1")
    with pytest.raises(ConfigurationError, match="colour"):
        settings.load({})


def test_misspelt_variables_are_found() -> None:
    environ = {"SOLOS_MEMORY_DB": "x", "SOLOS_MEMORY_DATABASE": "y", "SOLOS_MEMORY_AGENT": "z", "OTHER": "w"}
    assert settings.unknown_variables(environ) == ["SOLOS_MEMORY_DATABASE"]


@pytest.mark.parametrize(
    ("bind", "address"),
    [
        ("127.0.0.1:8437", ("127.0.0.1", 8437)),
        ("localhost:1", ("127.0.0.1", 1)),
        ("[::1]:8437", ("::1", 8437)),
        ("127.0.0.2:0", ("127.0.0.2", 0)),
    ],
)
def test_loopback_is_bound(bind: str, address: tuple[str, int]) -> None:
    assert settings.address_of(bind) == address


@pytest.mark.parametrize(
    "bind",
    ["0.0.0.0:8437", "192.168.4.60:8437", "[::]:8437", ":8437", "8437", "lab:8437", "127.0.0.1:x", "127.0.0.1:70000"],
)
def test_nothing_else_is(bind: str) -> None:
    with pytest.raises(ConfigurationError, match="bind"):
        settings.address_of(bind)
