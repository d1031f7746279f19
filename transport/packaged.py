"""Files of deploy/ that the installed program needs: in the wheel, or in the checkout that it is installed from."""

from importlib.resources import files
from pathlib import Path


def packaged(name: str) -> str:
    """The text of deploy/NAME.

    Raises:
        FileNotFoundError: neither wheel nor checkout has it: the installation is broken.
    """
    in_wheel = files("transport") / "deploy" / name
    in_checkout = Path(__file__).parents[1] / "deploy" / name
    return in_wheel.read_text("utf-8") if in_wheel.is_file() else in_checkout.read_text("utf-8")
