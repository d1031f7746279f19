"""`solos-memory doctor`: what is wrong with database, settings and installation, and what to do. Changes nothing."""

import os
import shlex
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from storage.errors import ConfigurationError
from storage.inspection import inspect_database, lock_holder
from storage.paths import Paths
from storage.swarm.layout import Roots
from storage.swarm.roster import Roster
from transport import settings
from transport.acceptance.calls import Endpoint
from transport.acceptance.results import Failed
from transport.packages import require_own_packages
from transport.units import UNITS, user_units_folder

Level = Literal["ok", "WARN", "FATAL"]

_SOCKET, _SERVICE = UNITS
_ANSWER_WITHIN_S = 3.0
_LOOPBACK = ("127.", "[::1]")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    level: Level
    subject: str
    text: str
    next_step: str = ""


def examine(db: Path | None) -> list[Finding]:
    """Everything that can be told without changing anything. Without `db` it is that of the settings, if any."""
    findings = [_packages(), *_unknown_variables()]
    address: tuple[str, int] | None = None
    try:
        loaded = settings.load({})
        address = settings.address_of(loaded.bind)
        findings.append(Finding("ok", "settings", f"bind {loaded.bind}, db {loaded.db or 'demo'}"))
        db = db or loaded.db
        findings += _swarm(loaded)
    except ConfigurationError as error:
        findings += _each_problem(error)
    findings += [*_database(db), *_units()]
    if address is not None:
        findings.append(_port(*address, db))
    return findings


def _packages() -> Finding:
    try:
        require_own_packages()
    except ConfigurationError as error:
        return Finding("FATAL", "packages", str(error), "Use a venv of its own.")
    return Finding("ok", "packages", "storage, actors and transport are ours")


# --- settings ---


def _unknown_variables() -> list[Finding]:
    return [
        Finding("WARN", "settings", f"the variable {name} is no setting", "Correct or remove it.")
        for name in settings.unknown_variables(os.environ)
    ]


def _each_problem(error: ConfigurationError) -> list[Finding]:
    """Every setting that cannot be used; the error itself names the first alone."""
    step = "Correct it: `solos-memory serve --help` lists all."
    if not isinstance(error.__cause__, ValidationError):
        return [Finding("FATAL", "settings", str(error), step)]
    return [
        Finding("FATAL", "settings", f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}", step)
        for problem in error.__cause__.errors(include_url=False, include_input=False)
    ]


# --- the swarm's files ---


def _swarm(loaded: settings.Settings) -> Iterator[Finding]:
    """Every root that the swarm's files lie in, or why it is refused."""
    try:
        folders: Roots = settings.swarm_of(loaded, os.environ).roots
    except ConfigurationError as error:
        yield Finding("FATAL", "swarm", str(error), "The service will not start before this setting is corrected.")
        return
    yield _root("swarm_profiles", folders.profiles)
    yield _root("swarm_shared", folders.shared)
    yield _workspace(folders.workspace)


def _root(setting: str, root: Path) -> Finding:
    """A root that is written to; it need not be there."""
    step = f"Mend it, or name another folder with the setting {setting}."
    try:
        if root.is_dir():
            if os.access(root, os.R_OK | os.W_OK | os.X_OK):
                return Finding("ok", "swarm", f"{setting}: {root} is there and can be written")
            return Finding("WARN", "swarm", f"{setting}: {root} cannot be written by this account", step)
        if root.exists():
            return Finding("WARN", "swarm", f"{setting}: {root} is no folder", step)
        above = next(path for path in root.parents if path.exists())
        if above.is_dir() and os.access(above, os.W_OK | os.X_OK):
            return Finding("ok", "swarm", f"{setting}: {root} is not there yet; the first write makes it")
        return Finding("WARN", "swarm", f"{setting}: {root} is not there and cannot be made in {above}", step)
    except OSError as error:
        return Finding("WARN", "swarm", f"{setting}: {root} cannot be looked at ({error.strerror})", step)


def _workspace(workspace: Path | None) -> Finding:
    """The folder of the roster, which is read and never written."""
    if workspace is None:
        return Finding("ok", "swarm", "swarm_workspace: none is named; roles come with each scaffold")
    roster = workspace / "swarm.yaml"
    if roster.is_file() and os.access(roster, os.R_OK):
        if Roster(workspace).read().unread:
            step = "Mend its YAML: a list of workers, each with id, role and specialty."
            return Finding("WARN", "swarm", f"swarm_workspace: {roster} is no roster that can be understood", step)
        return Finding("ok", "swarm", f"swarm_workspace: {roster} can be read")
    step = "Without it a scaffold knows no roles: name the folder that holds swarm.yaml."
    return Finding("WARN", "swarm", f"swarm_workspace: {roster} is no file that can be read", step)


# --- the database ---


def _database(db: Path | None) -> Iterator[Finding]:
    if db is None:
        yield Finding("WARN", "database", "none is configured", "Name one: --db PATH or SOLOS_MEMORY_DB.")
        return
    try:
        for seen in inspect_database(db):
            yield Finding(*seen)
    except ConfigurationError as error:
        yield Finding("FATAL", "database", str(error), "The service will not start before this is mended.")


# --- units ---


def _units() -> Iterator[Finding]:
    """What the units say; whether they run is systemd's to tell."""
    folder = user_units_folder()
    texts: dict[str, str] = {}
    for path in (folder / _SERVICE, folder / _SOCKET):
        try:
            texts[path.name] = path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            continue
        except OSError as error:
            yield Finding("WARN", "units", f"{path} cannot be read ({error.strerror})", "Mend its rights.")
            return
    if not texts:
        yield Finding("ok", "units", f"none in {folder}: the service is started by hand, or otherwise")
        return
    if missing := {_SERVICE, _SOCKET} - set(texts):
        step = "`solos-memory install-units` writes both: the socket keeps callers waiting through a restart."
        yield Finding("WARN", "units", f"{', '.join(texts)} is in {folder}, {', '.join(missing)} is not", step)
    for command in _assigned(texts.get(_SERVICE, ""), "ExecStart"):
        yield _service_unit(command, folder / _SERVICE)
    for address in _assigned(texts.get(_SOCKET, ""), "ListenStream"):
        yield _socket_unit(address, folder / _SOCKET)


def _service_unit(command: str, unit: Path) -> Finding:
    """The program that the unit starts: a venv that was moved or deleted is the commonest reason why it does not."""
    program = _program_of(command)
    if program.is_absolute() and not program.is_file():
        step = "Install the program there, or write the unit anew: `solos-memory install-units`."
        return Finding("WARN", "units", f"{unit} starts {program}, which is not there", step)
    return Finding("ok", "units", f"{unit} starts {program}")


def _program_of(command: str) -> Path:
    """The first word of a unit's command line, without systemd's prefixes and escapes."""
    try:
        words = shlex.split(command.lstrip("@-:+!"))
    except ValueError:  # an open quote
        words = command.split()
    home = str(Path.home())
    return Path(words[0].replace("%h", home).replace("%%", "%").replace("$$", "$") if words else "")


def _socket_unit(address: str, unit: Path) -> Finding:
    if address.startswith(_LOOPBACK):
        return Finding("ok", "units", f"{unit} listens on {address}")
    step = "Write 127.0.0.1 before its port: the service refuses a socket that others can reach."
    return Finding("WARN", "units", f"{unit} listens on {address}, not on loopback alone", step)


def _assigned(unit: str, name: str) -> list[str]:
    """The values that a unit's file assigns to a name."""
    lines = (line.partition("=") for line in unit.splitlines())
    return [value.strip() for key, _, value in lines if key.strip() == name and value.strip()]


# --- the port ---


def _port(host: str, port: int, db: Path | None) -> Finding:
    """Who answers where the service would. A service may have been started with another `bind` than this shell's."""
    at = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    holder = None if db is None else lock_holder(Paths(db))
    if port == 0:
        return Finding("ok", "port", "a free one is taken at start")
    if not _somebody_listens(host, port):
        if holder is None:
            return Finding("ok", "port", f"nobody listens on {at}")
        step = "Its log line `serving` names its address; set `bind` to the same here."
        return Finding("ok", "port", f"nobody listens on {at}, and {holder} serves this database elsewhere", step)
    try:
        health = Endpoint(host, port, limit_s=_ANSWER_WITHIN_S).ask("GET", "/health").body
    except Failed as error:
        step = "Behind a socket of systemd: `systemctl --user status lab-memory.service`. Else find it: `ss -ltnp`."
        return Finding("WARN", "port", f"what listens on {at} is not solos-memory: {error}", step)
    return _answered(at, health, elsewhere=db is not None and holder is None)


def _answered(at: str, health: dict[str, Any], *, elsewhere: bool) -> Finding:
    status = health.get("status")
    if not {"status", "reasons", "demo"} <= set(health):
        step = "Stop it, or give the service another address with `bind`."
        return Finding("WARN", "port", f"another program answers on {at}", step)
    if status == "not_ready":
        step = "See runbooks/health.md for each reason."
        return Finding("WARN", "port", f"solos-memory answers on {at}: not ready, {health['reasons']}", step)
    if elsewhere:
        step = "Stop that one before this one is started, or give this one another address with `bind`."
        return Finding("ok", "port", f"solos-memory answers on {at}, and serves another database", step)
    return Finding("ok", "port", f"solos-memory answers on {at}: status {status}")


def _somebody_listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=_ANSWER_WITHIN_S).close()
    except ConnectionRefusedError:
        return False
    except OSError:
        return True
    return True
