"""What the actors answer instead of a result."""

from storage.errors import Rejection


class MailboxFull(Rejection):
    """The mailbox has no room; nothing was accepted."""

    code = "overloaded"
    hint = "Wait and try again; a write with a request_id can be retried safely."
    retry_after_s = 1


class NotReady(Rejection):
    """The service is starting, or its writer is down."""

    code = "not_ready"
    hint = "Try again shortly; /health says why."
    retry_after_s = 2


class ShuttingDown(Rejection):
    """The service is stopping; nothing was accepted."""

    code = "shutting_down"
    hint = "Try again when the service is back."
    retry_after_s = 5


class DeadlineExceeded(Rejection):
    """The time for an answer was over before the work began; nothing was written."""

    code = "deadline_exceeded"
    hint = "Try again when the service is less busy."
    retry_after_s = 1


class OutcomeUnknown(Rejection):
    """The write had begun and its end was not seen in time; it may be on disk."""

    code = "outcome_unknown"
    hint = "If it carried a request_id, send it again with the same one: it is never written twice. Else look first."


class Internal(Rejection):
    """A bug of ours stopped the work; a write was rolled back. The log has the traceback."""

    code = "internal"
    hint = "Report it with the log line of this call: runbooks/errors.md#internal."


class ActorGaveUp(Exception):
    """An actor failed more often than its supervisor restarts it; the process ends with 1."""
