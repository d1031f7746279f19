"""Claude's memory tool over the service: for agents that use the `anthropic` package, with the extra `claude`."""

import http.client
import json
import urllib.error
import urllib.request
from typing import Any, Final
from urllib.parse import urlencode

from storage import limits

try:
    from anthropic import BaseModel
    from anthropic.lib.tools import BetaAbstractMemoryTool, ToolError
    from anthropic.types.beta import (
        BetaCacheControlEphemeralParam,
        BetaMemoryTool20250818CreateCommand,
        BetaMemoryTool20250818DeleteCommand,
        BetaMemoryTool20250818InsertCommand,
        BetaMemoryTool20250818RenameCommand,
        BetaMemoryTool20250818StrReplaceCommand,
        BetaMemoryTool20250818ViewCommand,
    )
except ImportError as error:
    raise ImportError(
        f"transport.claude_memory needs the anthropic package ({error}): pip install 'solos-memory[claude]'."
    ) from error

PATH: Final = "/v1/swarm/notes"
_TIMEOUT_S: Final = limits.WRITE_BUDGET_S + limits.ANSWER_GRACE_S + 5
# A proxy of the environment does not know this host's loopback.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class SolosMemory(BetaAbstractMemoryTool):
    """The memory tool of one agent: give it to `client.beta.messages.tool_runner(tools=[SolosMemory("sol")], …)`.

    `/memories` is the notes of the worker that the agent is. A command that the service refuses, and a service that
    does not answer, raise the package's ToolError, whose text is what Claude is told. Blocks up to 19 seconds.
    """

    def __init__(
        self,
        agent: str,
        url: str = "http://127.0.0.1:8437",
        *,
        cache_control: BetaCacheControlEphemeralParam | None = None,
    ) -> None:
        """`agent` must be a worker of the swarm; `url` is the service's. Nothing is sent yet."""
        super().__init__(cache_control=cache_control)
        self._agent = agent
        self._url = url.rstrip("/") + PATH

    def view(self, command: BetaMemoryTool20250818ViewCommand) -> str:
        """Show a directory or a file."""
        query = urlencode(self._arguments(command, "command"), doseq=True, errors="surrogatepass")
        return self._text(urllib.request.Request(f"{self._url}?{query}"))  # noqa: S310

    def create(self, command: BetaMemoryTool20250818CreateCommand) -> str:
        """Make a file; one that exists is left as it is."""
        return self._edited(command)

    def str_replace(self, command: BetaMemoryTool20250818StrReplaceCommand) -> str:
        """Replace text in a file; without `new_str` the text is removed."""
        return self._edited(command)

    def insert(self, command: BetaMemoryTool20250818InsertCommand) -> str:
        """Insert text behind a line of a file."""
        return self._edited(command)

    def delete(self, command: BetaMemoryTool20250818DeleteCommand) -> str:
        """Remove a file, or a directory with all that is in it."""
        return self._edited(command)

    def rename(self, command: BetaMemoryTool20250818RenameCommand) -> str:
        """Rename or move a file or a directory."""
        return self._edited(command)

    def _edited(self, command: BaseModel) -> str:
        body = json.dumps(self._arguments(command)).encode()
        return self._text(urllib.request.Request(self._url, body, {"Content-Type": "application/json"}))  # noqa: S310

    def _arguments(self, command: BaseModel, *without: str) -> dict[str, Any]:
        """What Claude gave, unchecked, for the agent that this is: who it is, Claude has no say in."""
        given = command.to_dict(warnings=False)
        left = {name: value for name, value in given.items() if value is not None and name not in without}
        return left | {"agent": self._agent}

    def _text(self, request: urllib.request.Request) -> str:
        """The text of an answer.

        Raises:
            ToolError: it is a refusal, or none came.
        """
        try:
            with _opener.open(request, timeout=_TIMEOUT_S) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                raise ToolError(self._refusal(error)) from error
        except (OSError, http.client.HTTPException) as error:
            raise ToolError(self._silence(request, error)) from error
        except ValueError as error:
            raise ToolError(f"Error: what answers at {self._url} is no solos-memory.") from error
        text = answer.get("text") if isinstance(answer, dict) and answer.get("ok") is True else None
        if not isinstance(text, str):
            raise ToolError(f"Error: what answers at {self._url} is no solos-memory.")
        return text

    def _refusal(self, error: urllib.error.HTTPError) -> str:
        try:
            return str(json.load(error)["error"]["detail"])
        except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError):
            return f"Error: {self._url} answered {error.code}, and no more."

    def _silence(self, request: urllib.request.Request, error: Exception) -> str:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ConnectionRefusedError) or request.data is None:
            return f"Error: the memory service does not answer at {self._url} ({reason}); nothing was done."
        return (
            f"Error: the memory service at {self._url} broke off ({reason}); the command may have been done. "
            "View the path before you send it again."
        )
