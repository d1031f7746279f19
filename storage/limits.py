"""Every bound of the service, in one table: `/v1/stats` shows it and the runbooks document it.

Names carry their units. `BOUNDS` is what is shown; a bound that is not in it does not exist.
"""

from typing import Final

K_DEFAULT: Final = 5
K_MAX: Final = 50
LIST_MAX: Final = 200
AGENT_CHARS_MAX: Final = 128
KEY_CHARS_MAX: Final = 1_024
TOPIC_CHARS_MAX: Final = 300
SOURCE_CHARS_MAX: Final = 1_000
SESSION_CHARS_MAX: Final = 200
TAGS_MAX: Final = 32
TAG_CHARS_MAX: Final = 100
TEXT_CHARS_MAX: Final = 65_536
DETAILS_CHARS_MAX: Final = 131_072
QUERY_CHARS_MAX: Final = 32_768
QUERY_TERMS_MAX: Final = 256
POSTINGS_BUDGET: Final = 5_000  # of rows that one recall scores, all its tiers together: ADR 0010
POOL_ROWS: Final = 150
NARROW_ROWS_MAX: Final = 600
FILTERED_ROWS_MAX: Final = 10_000
STOP_WORDS_KEPT_UP_TO: Final = 40
REQUEST_ID_CHARS_MAX: Final = 200
TTL_S_MAX: Final = 10 * 365 * 86_400
BODY_BYTES_MAX: Final = 1_048_576
HEAD_BYTES_MAX: Final = 524_288  # a GET whose q is 32,768 CJK characters is 295 KB of percent codes
HEADERS_MAX: Final = 100  # lines of a head: 100,000 in its bytes would keep the event loop for a quarter of a second
CONNECTIONS_MAX: Final = 2_048  # one that is idle takes 17 KB
DESCRIPTORS_KEPT: Final = 256  # for files: without one to open, SQLite and the index fail
ARRIVING_BYTES_MAX: Final = 64 * 1_048_576

PREVIEW_CHARS_MAX: Final = 600
PREVIEW_CHARS_MIN: Final = 80
PREVIEWS_CHARS: Final = 5_000
REPLY_CHARS: Final = 8_000

REQUEST_WITHIN_S: Final = 30.0
READ_DEADLINE_S: Final = 10.0
WRITE_BUDGET_S: Final = 12.0
ANSWER_GRACE_S: Final = 2.0  # more for a message that has started; with the budget below Hermes's time-out of 15 s
BUSY_TIMEOUT_MS: Final = 5_000
BUSY_RETRIES_MAX: Final = 3
BATCH_MESSAGES_MAX: Final = 64
BATCH_BYTES_MAX: Final = 1_048_576
BATCH_S_MAX: Final = 0.05
PURGE_ROWS: Final = 2_000  # 30 ms; the index forgets them in the same piece
WRITER_MAILBOX_MAX: Final = 512
READER_MAILBOX_MAX: Final = 256
AGENT_SHARE: Final = 0.25  # of a mailbox: as much of it one agent's messages may take
AGENT_BATCH_MAX: Final = 8  # of a batch: with 64 of an agent that loops, others kept half of their throughput
READERS: Final = 2
RECALLER_FROM_LOOKS: Final = 100  # a reader that was asked for as many recalls gets a process for them: 40 to 100 MB
RESTARTS_MAX: Final = 3
RESTART_WINDOW_S: Final = 60.0
AGENT_LABELS_MAX: Final = 100  # of counters: each agent more is a series more for whoever scrapes them
DRAIN_S: Final = 8.0

CATCH_UP_WAIT_S: Final = 0.1
CATCH_UP_ROWS: Final = 250
CATCH_UP_CHARS: Final = 1_048_576
ANALYST_FROM_ROWS: Final = 10_000  # a build that has read as many is helped by a second process
CATCH_UP_SLICE_S: Final = 0.05
JANITOR_PERIOD_S: Final = 30.0
INDEX_CHECK_PERIOD_S: Final = 3_600.0
REQUEST_ID_KEPT_S: Final = 7 * 86_400.0
WAL_BYTES_KEPT: Final = 16 * 1_048_576  # four times what SQLite lets it grow to where no reader holds it
WAL_BYTES_WARN: Final = 64 * 1_048_576
QUICK_CHECK_BYTES_MAX: Final = 64 * 1_048_576  # a larger database is sampled at start: doctor reads it whole

BOUNDS: Final[dict[str, int | float]] = {
    name.lower(): value for name, value in list(globals().items()) if name.isupper() and isinstance(value, int | float)
}
"""Every bound above by its lower-case name."""
