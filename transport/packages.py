"""Three top-level packages with plain names: make sure that they are ours."""

import importlib.util
import json
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path
from urllib.parse import unquote, urlparse

from storage.errors import ConfigurationError

OURS = "solos-memory"
PACKAGES = ("storage", "actors", "transport")


def require_own_packages() -> None:
    """Refuse to run where another distribution brings a package of one of our names.

    Raises:
        ConfigurationError: names the other package.
    """
    owners = packages_distributions()
    for name in PACKAGES:
        found = set(owners.get(name, ()))
        if others := sorted(found - {OURS}):
            raise ConfigurationError(
                f"The package {name!r} is also installed by {', '.join(others)}. "
                f"Give solos-memory a venv of its own, or uninstall {others[0]}."
            )
        if not found and not _from_editable(name):
            raise ConfigurationError(f"The package {name!r} is not the one that {OURS} installed; reinstall it.")


def _from_editable(name: str) -> bool:
    """Whether the package comes from the project folder of an editable install."""
    try:
        direct = distribution(OURS).read_text("direct_url.json")
    except PackageNotFoundError:
        return False
    source = json.loads(direct or "{}")
    spec = importlib.util.find_spec(name)
    if not source.get("dir_info", {}).get("editable") or spec is None or spec.origin is None:
        return False
    project = Path(unquote(urlparse(source["url"]).path)).resolve()
    return Path(spec.origin).resolve().is_relative_to(project)
