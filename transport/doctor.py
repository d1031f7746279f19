"""`solos-memory doctor`: what is wrong with database, settings and installation, and what to do. Changes nothing."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from storage.errors import ConfigurationError
from storage.inspection import inspect_database
from transport import settings
from transport.packages import require_own_packages

Level = Literal["ok", "WARN", "FATAL"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    level: Level
    subject: str
    text: str
    next_step: str = ""


def examine(db: Path | None) -> list[Finding]:
    """Everything that can be told without changing anything."""
    findings = [_packages(), *_settings()]
    if db is None:
        findings.append(Finding("WARN", "database", "none is configured", "Name one: --db PATH or SOLOS_MEMORY_DB."))
        return findings
    try:
        findings += [Finding(*seen) for seen in inspect_database(db)]
    except ConfigurationError as error:
        findings.append(Finding("FATAL", "database", str(error), "The service will not start before this is mended."))
    return findings


def _packages() -> Finding:
    try:
        require_own_packages()
    except ConfigurationError as error:
        return Finding("FATAL", "packages", str(error), "Use a venv of its own.")
    return Finding("ok", "packages", "storage, actors and transport are ours")


def _settings() -> list[Finding]:
    findings = [
        Finding("WARN", "settings", f"the variable {name} is no setting", "Correct or remove it.")
        for name in settings.unknown_variables(os.environ)
    ]
    try:
        loaded = settings.load({})
        settings.address_of(loaded.bind)
        findings.append(Finding("ok", "settings", f"bind {loaded.bind}, db {loaded.db or 'demo'}"))
    except ConfigurationError as error:
        findings.append(Finding("FATAL", "settings", str(error), "Correct it: `solos-memory serve --help` lists all."))
    return findings
