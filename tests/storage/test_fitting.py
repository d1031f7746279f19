"""Text within a budget: it is kept, and what is newest stays."""

from hypothesis import example, given
from hypothesis import strategies as st

from storage.fitting import blocks, fitted, newest, section_of, shares

PAGES = st.lists(
    st.one_of(
        st.text(max_size=80), st.sampled_from(["## Next exact action", "# Title", "```", "- item", "## Checkpoints"])
    ),
    max_size=60,
).map("\n".join)


@given(PAGES, st.integers(0, 600))
@example("# A\n" + "x" * 500, 10)
@example("## Next exact action\n" + "y" * 900, 100)
def test_a_page_never_exceeds_its_budget(page: str, chars: int) -> None:
    shown = fitted(page, chars, first=("next exact action",), newest_first=("checkpoints",))
    assert len(shown) <= chars
    assert shown == page or len(page) > chars


@given(PAGES, st.integers(0, 600))
def test_the_newest_of_a_text_never_exceeds_its_budget(page: str, chars: int) -> None:
    assert len(newest(page, chars)) <= chars


@given(st.lists(st.integers(0, 5_000), min_size=1, max_size=8), st.integers(-5, 9_000), st.data())
def test_shares_never_exceed_the_room_and_never_waste_it(lengths: list[int], room: int, data: st.DataObject) -> None:
    weights = data.draw(st.lists(st.floats(0.5, 8), min_size=len(lengths), max_size=len(lengths)))
    kept = shares(lengths, weights, room)
    assert sum(kept) <= max(room, 0)
    assert all(0 <= part <= length for part, length in zip(kept, lengths, strict=True))
    assert sum(kept) >= min(sum(lengths), max(room, 0)) - len(lengths)


def test_a_short_text_leaves_its_share_to_the_others() -> None:
    assert shares([10, 5_000], [1, 1], 1_000) == [10, 990]
    assert shares([5_000, 5_000], [1, 3], 1_000) == [250, 750]


def test_every_section_keeps_its_newest_lines() -> None:
    decisions = "".join(f"- decision {number}\n" for number in range(100))
    checkpoints = "".join(f"- checkpoint {number}\n" for number in reversed(range(100)))
    page = f"# Mission m1\n\n## Decisions\n\n{decisions}\n## Checkpoints\n\n{checkpoints}\n## Next action\n\nGo.\n"
    shown = fitted(page, 800, first=("next action",), newest_first=("checkpoints",))
    assert "- decision 99\n" in shown
    assert "- decision 1\n" not in shown
    assert "- checkpoint 99\n" in shown
    assert "- checkpoint 1\n" not in shown
    assert shown.endswith("## Next action\n\nGo.")
    assert shown.count("lines left out") == 2
    assert shown.index("## Decisions\n… (") < shown.index("- decision 99\n")


def test_what_is_read_first_is_cut_last() -> None:
    done = "done and done again\n" * 200
    page = f"# Handoff\n\n## Completed\n\n{done}\n## Next exact action\n\n{'a' * 300}\n"
    assert "a" * 300 in fitted(page, 600, first=("next exact action",))


def test_a_heading_in_a_fence_is_none() -> None:
    page = "## Objective\n```sh\n## Next action\n```\nText.\n## Next action\nGo on.\n"
    assert section_of(page, "next action") == "Go on."
    assert section_of(page, "objective") == "```sh\n## Next action\n```\nText."
    assert section_of(page, "blockers") is None


def test_a_page_is_cut_before_each_mark() -> None:
    assert blocks("# Title\n\n## 10:00\n- a\n## 11:00\n- b\n", "## ") == ["## 10:00\n- a\n", "## 11:00\n- b\n"]


def test_a_page_of_many_headings_costs_no_more_than_its_length() -> None:
    """Twice the headings, about twice the work, counted in comparisons rather than in time."""

    class Counting(frozenset[str]):
        asked = 0

        def __contains__(self, title: object) -> bool:
            Counting.asked += 1
            return super().__contains__(title)

    def comparisons(headings: int) -> int:
        Counting.asked = 0
        fitted("# next action\nx\n" * headings, 1_000, first=Counting({"next action"}))
        return Counting.asked

    assert comparisons(2_000) <= 2 * comparisons(1_000)
