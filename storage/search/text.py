"""Text analysis: what of a question is asked. (Step by step this becomes one function for both sides.)"""

import re

from storage import limits

_WORD = re.compile(r"\w+")
STOP_WORDS = frozenset(
    """a an the and or but if of at by for with about to from in on off over under is am are was were be been being
    have has had do does did doing will would shall should can could may might must i me my we our you your he him his
    she her it its they them their this that these those what which who whom whose when where why how not no nor so
    than too very as into out up down there here""".split()
)


def terms_of(question: str) -> list[str]:
    """The question's distinct words in order, without stop words unless it has no others; at most QUERY_TERMS_MAX."""
    words = list(dict.fromkeys(_WORD.findall(question.replace("\x00", "").lower())))
    telling = [word for word in words if word not in STOP_WORDS] or words
    return telling[: limits.QUERY_TERMS_MAX]


def match_any(terms: list[str]) -> str:
    """An FTS5 expression that any of the terms satisfies. Each is quoted, so no question is ever a syntax error."""
    return " OR ".join(f'"{term}"' for term in terms)


def match_all(terms: list[str]) -> str:
    """An FTS5 expression that only all of the terms satisfy."""
    return " AND ".join(f'"{term}"' for term in terms)
