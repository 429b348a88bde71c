# Each target sets up what it needs. PYTHON: the interpreter for the virtual environment, 3.11 or newer, as constraints.txt needs it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OUTPUT ?= output/demo

.PHONY: setup train setrank test ecosystem lint format bench cards clean

setup: $(VENV)/.done

$(VENV)/.done: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

train: setup  ## train a reranker on the embedded demo data, no downloads from a hub
	HF_HUB_OFFLINE=1 $(BIN)/python examples/ms_marco/train_listwise.py --dataset demo --model demo --output_dir $(OUTPUT) \
		--learning_rate 1e-4 --per_device_train_batch_size 4

setrank: setup  ## train SetRank on numeric documents that the script makes itself
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python examples/setrank/train_letor.py --output_dir output/setrank

test: setup
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/pytest --numprocesses auto

ecosystem:  ## ONNX, and the rerankers of LangChain, LlamaIndex and rerankers, in an environment of their own
	$(PYTHON) -m venv $(VENV)-ecosystem
	$(VENV)-ecosystem/bin/python -m pip install --quiet --constraint constraints.txt torch
	$(VENV)-ecosystem/bin/python -m pip install --quiet --editable ".[ecosystem]"
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(VENV)-ecosystem/bin/pytest tests/ecosystem

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup  ## speed and memory against sentence-transformers' losses
	HF_HUB_OFFLINE=1 $(BIN)/python tests/benchmarks/training_step.py

cards: setup  ## model cards from the results files of runs, and of comparisons: a folder each
	$(BIN)/python examples/ms_marco/card.py model_cards/results/*.json --about model_cards/about.json --output_dir model_cards
	$(BIN)/python examples/setrank/comparison_card.py model_cards/results/*/ --about model_cards/about.json \
		--output_dir model_cards

clean:
	rm -rf $(VENV) $(VENV)-ecosystem output .pytest_cache .mypy_cache .ruff_cache .hypothesis
