"""Three plain package names: another distribution that brings one of them is refused by name."""

import pytest

from storage.errors import ConfigurationError
from transport import packages


def test_our_own_installation_is_accepted() -> None:
    packages.require_own_packages()


def test_another_owner_of_a_name_is_refused_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "packages_distributions", lambda: {"storage": ["solos-memory", "other-storage"]})
    with pytest.raises(ConfigurationError, match="other-storage"):
        packages.require_own_packages()


def test_a_package_that_nobody_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "packages_distributions", dict)
    monkeypatch.setattr(packages, "_from_editable", lambda name: False)
    with pytest.raises(ConfigurationError, match="reinstall"):
        packages.require_own_packages()
