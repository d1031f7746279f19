"""Fifteen workers as an operator would keep them: a roster, lessons, past missions, and a chronicler's long history."""

from pathlib import Path

from tests.storage.swarm.files import person_writes

ROSTER = """\
version: 1
workers:
  - id: ada
    name: Ada
    role: Backend engineer
    specialty: Python services, REST endpoints, SQL schemas
    model: opus
    skills: [fastapi, postgresql, migrations, queues]
  - id: bram
    name: Bram
    role: Frontend engineer
    specialty: React components, TypeScript, CSS
    model: sonnet
    skills: [accessibility, dark mode, responsive layouts]
  - id: cleo
    name: Cleo
    role: QA tester
    specialty: end-to-end tests, regressions, flaky suites
    model: sonnet
    tags:
      - playwright
      - pytest
      - bug reproduction
  - id: dirk
    name: Dirk
    role: Platform operator
    specialty: Kubernetes clusters, Terraform, CI pipelines
    model: sonnet
    capabilities:
      - rollouts and rollbacks
      - monitoring and alerts
  - id: elif
    name: Elif
    role: Data engineer
    specialty: warehouse models, Airflow jobs, ETL
    model: sonnet
    skills: [dbt, spark, parquet]
  - id: finn
    name: Finn
    role: Security auditor
    specialty: threat models, secrets, vulnerable dependencies
    model: opus
    mission: >
      Find what an attacker would find first:
      leaked credentials, missing permission checks,
      injection.
  - id: gwen
    name: Gwen
    role: Technical writer
    specialty: tutorials, API reference, changelogs
    model: haiku
  - id: hugo
    name: Hugo
    role: Performance engineer
    specialty: profiling, benchmarks, memory leaks
    model: opus
  - id: iris
    name: Iris
    role: PR reviewer
    specialty: pull requests, merge conflicts, release branches
    model: sonnet
  - id: jun
    name: Jun
    role: ローカライズ担当
    specialty: 日本語と中文の翻訳、用語集
    model: sonnet
  - id: kai
    name: Kai
    role: Mobile developer
    specialty: iOS in Swift, Android in Kotlin
    model: sonnet
    description: Ships the apps to both stores and watches their crash reports.
  - id: lena
    name: Lena
    role: Kundendienst
    specialty: Rechnungen, Mahnungen, Rückerstattungen
    model: haiku
  - {id: milo, name: Milo, role: Machine learning engineer, specialty: "training runs, evaluation, embeddings"}
  - id: nora
    name: Nora
    role: Researcher
    specialty: market surveys, competitor analysis, interviews
    model: sonnet
  - id: otto
    name: Otto
    role: Chronicler
    specialty: writes down what the others did each day
    model: haiku
"""

LESSONS: dict[str, list[str]] = {
    "ada": [
        "Stripe sends a webhook twice now and then; store the event id before the charge is booked.",
        "The invoices table is locked by a long ALTER; add the column first and fill it in batches.",
        "Session tokens live in Redis for 30 minutes; after a failover they are gone and everybody is logged out.",
    ],
    "bram": [
        "Safari caches the service worker: bump its version or users keep the old page.",
        "The date picker breaks in right-to-left languages unless the calendar grid is mirrored.",
        "Screen readers announce toast messages only inside a live region.",
    ],
    "cleo": [
        "The checkout suite fails at midnight UTC because fixtures use today's date.",
        "Playwright needs two workers at most on the small runners, else browsers are killed.",
    ],
    "dirk": [
        "The certificate of the ingress is renewed by cert-manager; when the DNS challenge hangs, delete the order.",
        "Nodes in zone b run out of inodes before disk space; prune images weekly.",
        "The relay on lab-02 drops idle sockets after sixty seconds; send keepalives.",
    ],
    "elif": [
        "The vendor's CSV switches its delimiter to semicolons in March; sniff it before loading.",
        "Late events arrive up to three days after; the daily partition must be rebuilt for that long.",
    ],
    "finn": [
        "The SAML login accepted unsigned assertions until the library was pinned.",
        "Rotate the signing keys before staff leave, not after.",
    ],
    "gwen": [
        "Screenshots age quickly; prefer console output that a script can check.",
        "Readers look for the upgrade notes first; put breaking changes on top.",
    ],
    "hugo": [
        "A WAL checkpoint stalls readers when the log is larger than a gigabyte; truncate it nightly.",
        "The garbage collector pauses came from a cache of parsed templates without a bound.",
    ],
    "iris": [
        "Squash before a rebase on main, else the same conflict comes once for each commit.",
        "Generated lock files are never reviewed line by line; regenerate and compare.",
    ],
    "jun": [
        "「キャンセル」ボタンは「取り消し」と訳さない。",
        "简体中文的按钮文字不要超过四个字。",
        "Placeholders such as {count} must keep their order in the Korean file.",
    ],
    "kai": [
        "Push notifications are silent on Android 14 unless the channel is created at first launch.",
        "The App Store rejects builds whose privacy manifest lacks the reason for disk access.",
        "Bluetooth pairing with the thermostat fails while a VPN is on.",
    ],
    "lena": [
        "Kunden aus der Schweiz brauchen keine Umsatzsteuer auf der Rechnung.",
        "Ein verlorenes Paket wird nach zehn Tagen ersetzt, nicht früher.",
    ],
    "milo": [
        "Loss spikes after a resume came from the optimizer state that was not saved.",
        "The reranker prefers long passages; normalise its scores by length.",
    ],
    "nora": [
        "Interviewees speak freely when no recording is made; write notes within the hour.",
        "Pricing pages of rivals are archived every quarter in the sheet named landscape.",
    ],
    "otto": ["Write the day's page before midnight."],
}

MISSIONS: dict[str, list[tuple[str, str, str]]] = {
    "ada": [
        ("m-101", "Split the billing service", "Billing answers on its own port, and the monolith calls it over HTTP."),
        (
            "m-102",
            "Rate limits for the public endpoints",
            "Each token may ask 100 times a minute; more is answered with 429.",
        ),
    ],
    "bram": [
        ("m-111", "New onboarding wizard", "A visitor creates a workspace in three steps, with keyboard only."),
        (
            "m-112",
            "Charts on the usage page",
            "Usage is drawn as stacked bars with a legend, from the metrics endpoint.",
        ),
    ],
    "cleo": [
        ("m-121", "Reproduce the lost drafts", "Drafts vanish when two tabs save at once; a failing test shows it."),
        ("m-122", "Load test of the sign-up form", "Five hundred sign-ups a minute, without an error."),
    ],
    "dirk": [
        ("m-131", "Move the relay to lab-02", "The relay runs on lab-02, and the name points at it."),
        (
            "m-132",
            "Nightly backups to the second region",
            "Snapshots are copied to Frankfurt and restored once a week as a trial.",
        ),
    ],
    "elif": [
        ("m-141", "Churn dashboard", "The board shows how many subscribers left, by plan and month."),
        (
            "m-142",
            "Import of the partner's orders",
            "Orders of the partner arrive hourly over SFTP and are deduplicated.",
        ),
    ],
    "finn": [
        ("m-151", "Pen test of the admin console", "Nobody without the admin role reaches the console or its exports."),
        ("m-152", "Two-factor for staff", "Staff log in with a hardware key; recovery codes are printed once."),
    ],
    "gwen": [
        ("m-161", "Quickstart in ten minutes", "A newcomer installs the client and sends a first message."),
        ("m-162", "Glossary of the product", "Each term of the product has one meaning, and an example."),
    ],
    "hugo": [
        (
            "m-171",
            "Search answers in 20 ms",
            "The ninety-fifth percentile of a search stays below 20 ms with a million rows.",
        ),
        ("m-172", "Cold start of the lambda", "The function answers its first request within 300 ms."),
    ],
    "iris": [
        ("m-181", "Release 4.2", "The branch is cut, cherry-picks are listed, and the tag is signed."),
        ("m-182", "Clean up stale branches", "Branches without a commit for ninety days are deleted after a notice."),
    ],
    "jun": [
        ("m-191", "設定画面の翻訳", "設定画面のすべての文言を日本語にする。"),
        ("m-192", "帮助中心的本地化", "把帮助中心的文章翻译成中文。"),
    ],
    "kai": [
        ("m-201", "Offline mode", "The app shows the last synchronised notes in a plane."),
        ("m-202", "Widget for the home screen", "A widget shows today's tasks and opens the app."),
    ],
    "lena": [
        ("m-211", "Beschwerden zum Umzug", "Alle Beschwerden zum Umzug der Konten sind beantwortet."),
        ("m-212", "Kündigungen im Januar", "Jede Kündigung ist bestätigt, mit dem letzten Tag des Vertrags."),
    ],
    "milo": [
        (
            "m-221",
            "Fine-tune the classifier of tickets",
            "Tickets are sorted into nine queues with ninety percent right.",
        ),
        ("m-222", "Duplicate detection in the catalogue", "Pictures of the same article are found by their vectors."),
    ],
    "nora": [
        ("m-231", "Why teams leave after the trial", "Twelve conversations with teams that did not buy, and a report."),
        ("m-232", "Grants for open source", "A list of foundations that fund open source, with deadlines."),
    ],
    "otto": [],
}

SOUL = """\
# SOUL.md — {worker}

Work in small steps, say what you are unsure of, and ask before you delete anything.
Report a checkpoint when a task is done, blocked or handed over.
"""

MEMORY = """\
# Memory — {worker}

## Role

{role}

## Durable operating notes

- ...

## Lessons learned

{lessons}
"""

SUMMARY = """\
# Mission {mission} — {title}

## Current state

- Status: complete
- Current assignment: none

## Objective

{objective}

## Decisions

- ...

## Blockers

- ...

## Next action

...
"""


def make_fleet(folder: Path) -> None:
    """The roster, and the memory of each worker. Otto's history holds nearly every word of the others' memory."""
    person_writes(folder / "workspace" / "swarm.yaml", ROSTER)
    for worker, lessons in LESSONS.items():
        memory = folder / "profiles" / worker / "memory"
        listed = "\n".join(f"- {lesson}" for lesson in lessons)
        person_writes(memory / "SOUL.md", SOUL.format(worker=worker))
        person_writes(memory / "MEMORY.md", MEMORY.format(worker=worker, role="...", lessons=listed))
        for mission, title, objective in MISSIONS[worker]:
            page = SUMMARY.format(mission=mission, title=title, objective=objective)
            person_writes(memory / "missions" / mission / "SUMMARY.md", page)
            said = f"## 10:00 UTC — checkpoint\n\n- Mission: {mission}\n- Summary: {title} is done.\n"
            person_writes(memory / "episodes" / f"2026-04-{len(mission) + int(mission[-2:]) % 20:02d}.md", said)
    _make_history(folder / "profiles" / "otto" / "memory" / "episodes")


def _make_history(episodes: Path) -> None:
    """120 days on which a chronicler noted what the others did: every lesson and mission, several times."""
    told = [
        f"{worker} says: {text}"
        for worker in LESSONS
        for text in (*LESSONS[worker], *(f"{title}: {objective}" for _, title, objective in MISSIONS[worker]))
    ]
    for day in range(120):
        lines = [f"- {told[(day * 3 + at) % len(told)]}" for at in range(3)]
        name = f"2026-{1 + day // 28:02d}-{1 + day % 28:02d}.md"
        person_writes(episodes / name, f"# Episodes — otto — {name[:10]}\n\n" + "\n".join(lines) + "\n")
