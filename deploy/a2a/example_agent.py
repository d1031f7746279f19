"""An A2A agent on a2a-sdk 1.3 that shares the fleet's memory: recall first, answer, write one episode.

    pip install "a2a-sdk[http-server]==1.3.0" uvicorn
    python3 example_agent.py --agent sol --port 8300

It echoes what its model would be given. It speaks both versions of the protocol: 1.0 (`SendMessage`) and 0.3
(`message/send`). Your own agent takes `solos_memory_client.py`, and `Remembering` around its executor.
"""

import argparse
import time

import uvicorn
from a2a.helpers import new_text_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill, SendMessageRequest
from solos_memory_client import Memory
from starlette.applications import Starlette

SHOWN_CHARS = 200


class Remembering(AgentExecutor):
    """Another executor with the shared memory around each of its turns. The SDK has no hooks of its own for that."""

    def __init__(self, inner: AgentExecutor, memory: Memory) -> None:
        self._inner = inner
        self._memory = memory

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Recall, run the turn, and write its episode however it ended; the memory never fails the turn."""
        prompt = context.get_user_input()
        claims = await self._memory.turn_start_async(prompt)
        began = time.monotonic()
        outcome = "interrupted"  # a cancellation is no Exception: it passes, and the episode is written all the same
        try:
            await self._inner.execute(_with_claims(context, claims), event_queue)
            outcome = "success"
        except Exception:
            outcome = "failure"
            raise
        finally:
            await self._memory.turn_end_async(
                f"Answered: {prompt[:SHOWN_CHARS]}",
                outcome=outcome,
                duration_s=time.monotonic() - began,
                session=context.context_id,
            )

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Cancel the turn as the inner executor does."""
        await self._inner.cancel(context, event_queue)


def _with_claims(context: RequestContext, claims: str) -> RequestContext:
    """A context whose message begins with the claims. A copy: the message itself goes into the task's history."""
    if not claims or context.message is None:
        return context
    request = SendMessageRequest(message=context.message, configuration=context.configuration)
    request.message.parts.insert(0, new_text_part(f"{claims}\n"))
    request.metadata.update(context.metadata)
    return RequestContext(
        context.call_context,
        request,
        task_id=context.task_id,
        context_id=context.context_id,
        task=context.current_task,
        related_tasks=context.related_tasks,
    )


class Echo(AgentExecutor):
    """Answers with its whole input. Yours calls a model."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Answer with one message."""
        await event_queue.enqueue_event(new_text_message(context.get_user_input(), context_id=context.context_id))

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Nothing to do: an echo is over at once."""


def application(executor: AgentExecutor, agent: str, port: int) -> Starlette:
    """The agent's card and its JSON-RPC endpoint, for both versions of the protocol."""
    url = f"http://127.0.0.1:{port}/"
    card = AgentCard(
        name=agent,
        description="Echoes what its model would be given.",
        version="1.0.0",
        supported_interfaces=[
            AgentInterface(url=url, protocol_binding="JSONRPC", protocol_version="1.0"),
            AgentInterface(url=url, protocol_binding="JSONRPC", protocol_version="0.3"),
        ],
        capabilities=AgentCapabilities(streaming=False),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="echo", name="Echo", description="Echoes.", tags=["echo"])],
    )
    requests = DefaultRequestHandler(executor, InMemoryTaskStore(), card)
    routes = [*create_agent_card_routes(card), *create_jsonrpc_routes(requests, "/", enable_v0_3_compat=True)]
    return Starlette(routes=routes)


def main() -> None:
    """Serve the example until it is ended."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--agent", required=True, help="its id in agent_registry")
    parser.add_argument("--port", type=int, required=True)
    given = parser.parse_args()
    executor = Remembering(Echo(), Memory(given.agent))
    uvicorn.run(application(executor, given.agent, given.port), host="127.0.0.1", port=given.port, log_level="warning")


if __name__ == "__main__":
    main()
