"""Every setting, in one table: flags, environment, one TOML file, help and documentation come from it."""

import ipaddress
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ValidationError
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from storage.errors import ConfigurationError
from storage.swarm.layout import WORKER_ID, SwarmConfig, roots

EX_CONFIG = 78
"""The exit code of a configuration that cannot be served (sysexits.h)."""
PREFIX = "SOLOS_MEMORY_"
CONFIG_VARIABLE = PREFIX + "CONFIG"
AGENT_VARIABLE = PREFIX + "AGENT"
URL_VARIABLE = PREFIX + "URL"
SPOOL_VARIABLE = PREFIX + "SPOOL"
_NOT_SETTINGS = (CONFIG_VARIABLE, AGENT_VARIABLE, URL_VARIABLE, SPOOL_VARIABLE)
_PORT_MAX = 65_535
_LOOPBACK_NAMES = {"localhost": "127.0.0.1"}
_ORIGIN = re.compile(r"https?://[a-z0-9.-]+(:[0-9]{1,5})?|https?://\[[0-9a-f:]+\](:[0-9]{1,5})?")


def _split(value: object) -> object:
    """Names as the environment holds them: a,b."""
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list | tuple):
        return value
    return [part for item in items for piece in str(item).split(",") if (part := piece.strip())]


def _origins(values: tuple[str, ...]) -> tuple[str, ...]:
    """Origins as browsers send them; anything else would be compared with them in vain."""
    origins = tuple(value.lower().removesuffix("/") for value in values)
    for value, origin in zip(values, origins, strict=True):
        if not _ORIGIN.fullmatch(origin):
            raise ValueError(f"{value!r} is no origin, such as http://127.0.0.1:3000 (no path, no wildcard)")
    return origins


class Settings(BaseSettings):
    """The settings of `serve`. A flag wins over the environment, the environment over the file."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, extra="forbid", use_attribute_docstrings=True, frozen=True, env_ignore_empty=True
    )

    db: Path | None = None
    """The SQLite database of the fleet. Without it the demo database is served."""
    bind: str = "127.0.0.1:8437"
    """Loopback address and port to listen on."""
    create: bool = False
    """Make a fresh database where `db` does not exist."""
    refuse_unregistered_reads: bool = False
    """Refuse reads, too, of agents that are not in agent_registry."""
    allowed_hosts: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)] = ()
    """Further host names, without port, that requests may name in their Host header: a,b."""
    allowed_origins: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split), AfterValidator(_origins)] = ()
    """Origins of pages that may read and write /api/swarm-memory: http://127.0.0.1:3000,…"""
    swarm_profiles: Path | None = None
    """Folder of the workers' profiles. Without it as HERMES_HOME says, else ~/.hermes/profiles."""
    swarm_shared: Path | None = None
    """Folder of shared memory. Without it $HERMES_SWARM_MEMORY_ROOT/memory, else ~/.openclaw/workspace/memory."""
    swarm_workspace: Path | None = None
    """Folder with swarm.yaml, which names the workers' roles."""
    swarm_workers: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)] = ()
    """Workers that are agents of another name: swarm5=mira,swarm6=atlas."""
    orchestrators: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)] = ()
    """Agents that may write shared swarm memory over MCP: a,b."""
    swarm_episodes: bool = False
    """Write each event of a worker that is a registered agent as an episode of that agent, too."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least important log lines to print."""
    log_format: Literal["auto", "json", "console"] = "auto"
    """JSON lines, readable ones, or by whether stdout is a terminal."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, then the environment, then the TOML file that SOLOS_MEMORY_CONFIG or --config names."""
        file = os.environ.get(CONFIG_VARIABLE)
        toml = (TomlConfigSettingsSource(settings_cls, Path(file)),) if file else ()
        return (init_settings, env_settings, *toml)


def load(flags: Mapping[str, Any]) -> Settings:
    """The settings in force.

    Raises:
        ConfigurationError: one is malformed; the message names it.
    """
    file = os.environ.get(CONFIG_VARIABLE)
    if file and not Path(file).is_file():
        raise ConfigurationError(f"{CONFIG_VARIABLE} names {file}, which is no file.")
    try:
        return Settings(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in problem["loc"])
        raise ConfigurationError(f"The setting {name} cannot be used: {problem['msg']}.") from error
    except ValueError as error:  # malformed TOML, or a malformed list in the environment
        raise ConfigurationError(f"The settings cannot be read: {error}.") from error


def swarm_of(config: Settings, environ: Mapping[str, str]) -> SwarmConfig:
    """Where the swarm's files lie, and who its workers are.

    Raises:
        ConfigurationError: a folder is refused, or a worker is malformed.
    """
    folders = roots(
        environ, profiles=config.swarm_profiles, shared=config.swarm_shared, workspace=config.swarm_workspace
    )
    workers: dict[str, str] = {}
    for pair in config.swarm_workers:
        worker, _, agent = (part.strip() for part in pair.partition("="))
        if not (agent and WORKER_ID.fullmatch(worker.lower())):
            raise ConfigurationError(f"swarm_workers: {pair!r} is no WORKER=AGENT.")
        if worker.lower() in workers or agent in workers.values():
            raise ConfigurationError(f"swarm_workers: {pair!r} names a worker or an agent that has its pair already.")
        workers[worker.lower()] = agent
    return SwarmConfig(folders, workers, config.orchestrators, config.swarm_episodes)


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Variables that look like settings of ours and are none: a misspelt one must not pass in silence."""
    known = {PREFIX + name.upper() for name in Settings.model_fields} | set(_NOT_SETTINGS)
    return sorted(name for name in environ if name.startswith(PREFIX) and name not in known)


def address_of(bind: str) -> tuple[str, int]:
    """Host and port of a `bind` setting.

    Raises:
        ConfigurationError: it is malformed, or no loopback address: nothing else can be bound.
    """
    host, _, port = bind.rpartition(":")
    host = _LOOPBACK_NAMES.get(host, host.strip("[]"))
    try:
        loopback = ipaddress.ip_address(host).is_loopback
        number = int(port)
    except ValueError:
        raise ConfigurationError(f"bind: {bind!r} is no HOST:PORT, such as 127.0.0.1:8437.") from None
    if not loopback:
        raise ConfigurationError(f"bind: {bind!r} is not loopback; this service listens on 127.0.0.1 or [::1] only.")
    if not 0 <= number <= _PORT_MAX:
        raise ConfigurationError(f"bind: {number} is no port (0 to 65535).")
    return host, number


def demo_database() -> Path:
    """Where the demo database lives."""
    home = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(home) / "solos-memory" / "demo.db"


def under_systemd(environ: Mapping[str, str]) -> bool:
    """Whether a service manager started us: then a missing `db` is a lost environment file, never a demo."""
    return "NOTIFY_SOCKET" in environ or "LISTEN_FDS" in environ
