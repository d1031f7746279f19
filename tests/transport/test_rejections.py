"""Every refusal has one status, one class and one body."""

import pytest

import actors.errors
import actors.life_units
import storage.errors
import transport.rejections
from storage.errors import Rejection
from storage.swarm.life.renewing import HandoffAwaited
from transport.rejections import RENDERINGS, body_of


def every_rejection() -> list[type[Rejection]]:
    """Every class of refusal in the program."""
    assert actors.errors
    assert actors.life_units
    assert storage.errors
    assert transport.rejections

    def below(cls: type[Rejection]) -> list[type[Rejection]]:
        return [sub for direct in cls.__subclasses__() for sub in (direct, *below(direct))]

    return [cls for cls in below(Rejection) if cls.__module__.split(".")[0] in ("storage", "actors", "transport")]


def test_the_mapping_is_total_both_ways() -> None:
    assert {cls.code for cls in every_rejection()} == set(RENDERINGS)


@pytest.mark.parametrize("cls", every_rejection(), ids=lambda cls: cls.__name__)
def test_a_refusal_says_what_happened_and_what_to_do(cls: type[Rejection]) -> None:
    error = body_of(cls())["error"]
    assert error["code"] == cls.code
    assert error["detail"].endswith(".")
    assert error["hint"]
    may_come_right = RENDERINGS[cls.code].status == 503 or cls is HandoffAwaited
    assert may_come_right == (error.get("retry_after_s") is not None) or cls.code in {
        "storage_damaged",
        "deadline_exceeded",
    }


def test_only_what_the_caller_cannot_mend_is_an_mcp_error() -> None:
    assert all(rendering.is_error == (rendering.status >= 500) for rendering in RENDERINGS.values())
