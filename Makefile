# Two commands do everything: `make serve` and `make test`. Python 3.11, git and make are all they need.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
HERMES := .cache/hermes
HERMES_VERSION := 0.19.0
A2A := .cache/a2a
A2A_VERSION := 1.3.0
FLEET_ROWS := 20000
FLEET := .cache/fleet-$(FLEET_ROWS).db
BIND ?= 127.0.0.1:8437
DB ?= .cache/fleet-500000.db

.PHONY: serve test test-fast torture lint types traps bench-start bench-recall bench-fleet bench-latency bench-swarm bench-recommend bench-life bench-load soak lock clean

serve: $(VENV)/ready
	@echo "The demo's memory, on http://$(BIND). Three calls to try, in another shell:"
	@echo "  curl -s 'http://$(BIND)/v1/recall?agent=sol&q=gateway+port'"
	@echo "  curl -s http://$(BIND)/v1/long -H 'Content-Type: application/json' -d '{\"agent\":\"mira\",\"fact\":\"The relay moved to lab-02.\"}'"
	@echo "  curl -s 'http://$(BIND)/v1/recall?agent=sol&q=where+is+the+relay'"
	@env -u SOLOS_MEMORY_DB -u SOLOS_MEMORY_CONFIG $(BIN)/solos-memory serve --bind $(BIND)

test: lint types $(HERMES)/ready $(A2A)/ready $(FLEET)
	SOLOS_TEST_HERMES=$(HERMES)/bin/python SOLOS_TEST_A2A=$(A2A)/bin/python SOLOS_TEST_FLEET=$(FLEET) $(BIN)/pytest -n 2 --dist loadfile

test-fast: lint types
	$(BIN)/pytest tests/storage tests/actors tests/transport tests/test_architecture.py tests/test_documentation.py

# The long form of tests/faults, alone on the machine, for more than an hour; SOLOS_TEST_SEED=N replays a seed that it printed.
torture: $(VENV)/ready
	SOLOS_TEST_LONG=1 $(BIN)/pytest -s tests/faults $(ARGS)

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/ready
	$(BIN)/mypy

# Start to ready, and memory after 10,000 recalls, on a fleet's database: make bench-start DB=/path/to/solos.db
bench-start: $(VENV)/ready $(DB)
	$(BIN)/python tests/bench/start.py $(DB)

# Recall on question sets, beside a small FTS5 reference: make bench-recall DATA=/path/to/sets [ARGS=--ablation]
bench-recall: $(VENV)/ready
	$(BIN)/python -m tests.bench.recall $(DATA) $(ARGS)

# Known items and 100 questions of common words, beside exact BM25: make bench-fleet DB=/path/to/solos.db
bench-fleet: $(VENV)/ready $(DB)
	$(BIN)/python -m tests.bench.fleet $(DB) $(ARGS)

# Latency by kind of question and filter, beside plain FTS5: make bench-latency DB=/path/to/solos.db [ARGS="--grow DB2"]
bench-latency: $(VENV)/ready $(DB)
	$(BIN)/python -m tests.bench.latency $(DB) $(ARGS)

# Search over the swarm's files, beside a plain scan of them, on 10,000 files that it makes: make bench-swarm [ARGS=…]
bench-swarm: $(VENV)/ready
	$(BIN)/python -m tests.bench.swarm_search $(ARGS)

# Who fits a task, among 50 workers that it makes: make bench-recommend [ARGS=…]
bench-recommend: $(VENV)/ready
	$(BIN)/python -m tests.bench.recommend $(ARGS)

# Resume and briefing of a worker with 5,000 events and 400 days: make bench-life [DB=/path/to/solos.db]
bench-life: $(VENV)/ready $(DB)
	$(BIN)/python -m tests.bench.worker_life $(DB) $(ARGS)

# Throughput over HTTP and MCP, beside the bare stack (needs wrk): make bench-load DB=/path/to/solos.db
bench-load: $(VENV)/ready $(DB)
	$(BIN)/python -m tests.bench.throughput $(DB) $(ARGS)

# A fleet's day at 20 x speed, and a report with pictures: make soak [ARGS="--minutes 30 --report soak.html"]
soak: $(VENV)/ready
	$(BIN)/python -m tests.bench.soak $(ARGS)

$(VENV)/ready: requirements.lock pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || python3 -m venv $(VENV)
	$(BIN)/pip install --quiet --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

# The real Hermes client, in a venv of its own: its pins are not ours.
$(HERMES)/ready:
	test -x $(HERMES)/bin/python || $(PYTHON) -m venv $(HERMES) || python3 -m venv $(HERMES)
	$(HERMES)/bin/pip install --quiet "hermes-agent[mcp]==$(HERMES_VERSION)"
	touch $@

# Real A2A agents, in a venv of their own.
$(A2A)/ready:
	test -x $(A2A)/bin/python || $(PYTHON) -m venv $(A2A) || python3 -m venv $(A2A)
	$(A2A)/bin/pip install --quiet "a2a-sdk[http-server]==$(A2A_VERSION)" uvicorn==0.54.0
	touch $@

.cache/fleet-%.db: tests/bench/gen_fleet.py
	mkdir -p .cache
	rm -f $@ $@-wal $@-shm
	python3 tests/bench/gen_fleet.py --sqlite $@ --rows $*

# Run where a registry can be reached; the file holds hashes and no addresses.
lock: pyproject.toml
	python3 -m venv .cache/lock && .cache/lock/bin/pip install --quiet pip-tools
	.cache/lock/bin/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras --extra dev \
	  --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-header \
	  --output-file requirements.lock pyproject.toml

clean:
	rm -rf $(VENV) .cache build dist
