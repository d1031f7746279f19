"""The systemd user units of an operator: the packaged ones with his paths."""

import os
from dataclasses import dataclass
from pathlib import Path

from storage.errors import ConfigurationError
from transport.packaged import packaged
from transport.settings import address_of

UNITS = ("lab-memory.socket", "lab-memory.service")


@dataclass(frozen=True, slots=True)
class Placed:
    """What is particular to one host."""

    program: Path
    """The console script `solos-memory`."""
    database: Path
    bind: str
    folder: Path
    """The service's working directory."""


def rendered(placed: Placed) -> dict[str, str]:
    """The text of each unit by its name.

    Raises:
        ConfigurationError: `bind` is no loopback address, or a path cannot stand in a unit.
    """
    address_of(placed.bind)
    values = {
        "@BIND@": placed.bind,
        "@PROGRAM@": _quoted("program", placed.program),
        "@DB@": _quoted("db", placed.database),
        # WorkingDirectory takes the rest of its line as it is, quotes included; only % has a meaning.
        "@FOLDER@": _plain("folder", placed.folder).replace("%", "%%"),
    }
    return {name: _filled(packaged(name), values) for name in UNITS}


def install(placed: Placed, into: Path, *, replace: bool) -> list[Path]:
    """Write the units into a folder and return where they are now. What is there and the same is left alone.

    Raises:
        ConfigurationError: a different unit is there and `replace` is not set, or it cannot be written.
    """
    texts = {into / name: text for name, text in rendered(placed).items()}
    different = [path for path, text in texts.items() if path.exists() and path.read_text("utf-8") != text]
    if different and not replace:
        raise ConfigurationError(f"{different[0]} is there and differs; look at it, then use --replace.")
    try:
        into.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"The units cannot be written: {error}.") from error
    return list(texts)


def user_units_folder() -> Path:
    """Where systemd looks for a user's own units."""
    home = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(home) / "systemd" / "user"


def _filled(text: str, values: dict[str, str]) -> str:
    for mark, value in values.items():
        text = text.replace(mark, value)
    return text


def _plain(name: str, path: Path) -> str:
    text = str(path)
    if not path.is_absolute() or any(ord(char) < ord(" ") for char in text):
        raise ConfigurationError(f"{name}: {text!r} is no absolute path without control characters.")
    return text


def _quoted(name: str, path: Path) -> str:
    """A path as one word of a unit's command line: systemd expands % and $ there, and reads escapes."""
    text = _plain(name, path).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{text}"' if any(char in text for char in " \t\"'\\;") else text
