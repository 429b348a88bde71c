"""Pushing to the Hub and loading back, against a server on this machine; failures at each step; no token anywhere."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from datasets import Dataset
from fake_hub import TOKEN, FakeHub
from huggingface_hub import constants, hf_api
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import _http
from sentence_transformers import CrossEncoder, CrossEncoderTrainer, CrossEncoderTrainingArguments
from tiny_models import tiny_bert, tiny_set
from transformers.utils import hub as transformers_hub

from st_listwise import LambdaLoss, ListMLELoss, SetRankCrossEncoder

for example in ("setrank", "ms_marco"):
    sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / example))

import train_listwise  # noqa: E402
import train_text  # noqa: E402
from publishing import push_final, push_settings  # noqa: E402

NAME = "owner/reranker"
PAIRS = [(query, doc) for query in ("what is a bear", "river") for doc in ("a bear", "the river runs", "paris")]
MODELS = {"pointwise": (tiny_bert, CrossEncoder), "set": (tiny_set, SetRankCrossEncoder)}
KINDS = pytest.mark.parametrize(("build", "load"), MODELS.values(), ids=MODELS)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    """The server, in the place of the Hub: addresses are read from these constants at each call."""
    with FakeHub() as server:
        template = server.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        values = {"ENDPOINT": server.endpoint, "HUGGINGFACE_CO_URL_TEMPLATE": template, "HF_HUB_OFFLINE": False}
        values |= {"HF_HUB_DISABLE_XET": True, "HF_HUB_CACHE": str(tmp_path / "cache")}
        for name, value in values.items():
            monkeypatch.setattr(constants, name, value)
        monkeypatch.setattr(transformers_hub, "_hf_api", None)  # keeps the address of its first use
        monkeypatch.setattr(hf_api.api, "endpoint", server.endpoint)  # of the functions at the top of huggingface_hub
        monkeypatch.setattr(_http, "time", SimpleNamespace(sleep=lambda seconds: None))  # between attempts
        yield server


@pytest.fixture
def fresh(tmp_path: Path) -> Callable[[], str]:
    """Gives a new, empty cache folder each time, so that nothing is loaded but what the server has."""
    numbers = iter(range(100))
    return lambda: str(tmp_path / f"cache{next(numbers)}")


@KINDS
@pytest.mark.parametrize("private", [False, True], ids=["public", "private"])
def test_a_pushed_model_scores_as_before(
    hub: FakeHub, fresh: Callable[[], str], build: Any, load: Any, private: bool
) -> None:
    model = build(seed=1)
    url = model.push_to_hub(NAME, token=TOKEN, private=private)
    assert url.startswith(f"{hub.endpoint}/{NAME}/")
    assert hub.repositories[NAME].private == private
    loaded = load(NAME, token=TOKEN if private else False, cache_folder=fresh())
    np.testing.assert_array_equal(loaded.predict(PAIRS), model.predict(PAIRS))
    if private:
        with pytest.raises((OSError, HfHubHTTPError)):
            load(NAME, token=False, cache_folder=fresh())


@KINDS
def test_an_existing_repository_is_written_to_only_on_request(
    hub: FakeHub, fresh: Callable[[], str], build: Any, load: Any
) -> None:
    build(seed=1).push_to_hub(NAME, token=TOKEN)
    first = hub.files(NAME)
    other = build(seed=2)
    with pytest.raises(HfHubHTTPError, match="409"):
        other.push_to_hub(NAME, token=TOKEN)
    assert hub.files(NAME) == first
    other.push_to_hub(NAME, token=TOKEN, exist_ok=True)
    assert len(hub.repositories[NAME].messages) == 2
    np.testing.assert_array_equal(load(NAME, cache_folder=fresh()).predict(PAIRS), other.predict(PAIRS))


@KINDS
def test_a_pull_request_leaves_the_main_branch_alone(
    hub: FakeHub, fresh: Callable[[], str], build: Any, load: Any
) -> None:
    first, other = build(seed=1), build(seed=2)
    first.push_to_hub(NAME, token=TOKEN)
    url = other.push_to_hub(NAME, token=TOKEN, create_pr=True)
    assert url == f"{hub.endpoint}/{NAME}/discussions/1"
    for revision, model in (("main", first), ("refs/pr/1", other)):
        loaded = load(NAME, revision=revision, cache_folder=fresh())
        np.testing.assert_array_equal(loaded.predict(PAIRS), model.predict(PAIRS))


def test_large_files_in_parts_and_a_fault_that_passes(hub: FakeHub, fresh: Callable[[], str]) -> None:
    hub.chunk_size = 20_000
    hub.faults, hub.once = {"upload": 500, "preupload": "cut"}, {"upload", "preupload"}
    model = tiny_set(seed=3)
    model.push_to_hub(NAME, token=TOKEN)
    assert hub.steps.count("upload") > 3
    loaded = SetRankCrossEncoder(NAME, cache_folder=fresh())
    np.testing.assert_array_equal(loaded.predict(PAIRS), model.predict(PAIRS))


def test_the_upload_in_batches_that_comes_with_xet(
    hub: FakeHub, fresh: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", False)
    hub.large = ()  # all files are small ones: the server does not speak the protocol for large ones
    model = tiny_set(seed=4)
    model.push_to_hub(NAME, token=TOKEN)
    assert len(hub.repositories[NAME].messages) == 1  # a model is one commit
    loaded = SetRankCrossEncoder(NAME, cache_folder=fresh())
    np.testing.assert_array_equal(loaded.predict(PAIRS), model.predict(PAIRS))


SCORING = {
    "activation_fn": "torch.nn.modules.linear.Identity",
    "mini_batch_size": 2,
    "mini_batch_tokens": None,
    "recompute": True,
    "share_prefix": False,
}
LOSSES = {
    "pointwise": (
        lambda model: LambdaLoss(model, k=3, sigma=2.0, mini_batch_size=2, recompute=True),
        {
            "weighting_scheme": "ndcg2pp",
            "gain": "exponential",
            "mu": 10.0,
            "k": 3,
            "sigma": 2.0,
            "eps": 1e-10,
            "reduction_log": "binary",
            **SCORING,
        },
    ),
    "set": (
        lambda model: ListMLELoss(model, ties="input", top_k=4, mini_batch_size=2, recompute=True),
        {"ties": "input", "top_k": 4, "respect_input_order": False, **SCORING},
    ),
}


@pytest.mark.parametrize("kind", MODELS)
def test_the_card_on_the_server_states_the_loss_and_its_snippet_loads_the_model(
    hub: FakeHub, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = MODELS[kind][0](seed=1)
    build_loss, config = LOSSES[kind]
    loss = build_loss(model)
    train = Dataset.from_dict(
        {"query": ["bear"] * 2, "docs": [["a bear", "paris", "no"]] * 2, "labels": [[2, 0, 1]] * 2}
    )
    args = CrossEncoderTrainingArguments(str(tmp_path / "out"), num_train_epochs=1, report_to="none", use_cpu=True)
    CrossEncoderTrainer(model=model, args=args, train_dataset=train, loss=loss).train()
    model.push_to_hub(NAME, token=TOKEN)
    card = hub.files(NAME)["README.md"].decode()
    (fullname,) = re.findall(r"\* Loss: <code>(.+)</code> with these parameters:", card)
    assert fullname == f"{type(loss).__module__}.{type(loss).__name__}"
    stated = json.loads(re.findall(r"parameters:\n\s*```json\n(.*?)```", card, re.DOTALL)[0])
    assert stated == config
    assert type(loss)(model, **stated).get_config_dict() == config
    (snippet,) = [code for code in re.findall(r"```python\n(.*?)```", card, re.DOTALL) if "predict" in code]
    assert f'CrossEncoder("{NAME}")' in snippet
    names: dict[str, Any] = {}
    exec(snippet, names)
    np.testing.assert_array_equal(names["model"].predict(PAIRS), model.predict(PAIRS))
    assert TOKEN not in card


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "final"
    tiny_bert(seed=5).save_pretrained(str(folder))
    return folder


def push_of(**changes: Any) -> dict[str, Any]:
    return {"repo_id": NAME, "token": TOKEN, "private": None, "revision": None, "create_pr": False, **changes}


FAILURES = [
    ("create", 401, "hf auth login"),
    ("create", 403, f"may not write to {NAME}"),
    ("create", 500, "wait a little"),
    ("create", "cut", "wait a little"),
    ("validate", "cut", "wait a little"),
    ("preupload", 401, "does not accept the token"),
    ("preupload", 403, "may not write"),
    ("preupload", 500, "wait a little"),
    ("batch", 403, "may not write"),
    ("upload", 403, "may not write"),
    ("upload", 500, "wait a little"),
    ("upload", "cut", "wait a little"),
    ("commit", 401, "does not accept the token"),
    ("commit", 403, "may not write"),
    ("commit", 409, f"Something else is changing {NAME}"),
    ("commit", 500, "wait a little"),
    ("commit", "cut", "wait a little"),
]


@pytest.mark.parametrize(("step", "fault", "advice"), FAILURES, ids=[f"{row[0]}-{row[1]}" for row in FAILURES])
def test_a_failed_push_loses_nothing_and_says_what_to_do(
    hub: FakeHub,
    saved: Path,
    fresh: Callable[[], str],
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    step: str,
    fault: int | str,
    advice: str,
) -> None:
    model = tiny_bert(seed=5)
    if step != "create":
        tiny_bert(seed=6).push_to_hub(NAME, token=TOKEN)
    on_hub = hub.files(NAME) if step != "create" else None
    on_disk = contents(saved)
    hub.faults[step] = fault
    with caplog.at_level(logging.DEBUG):
        assert push_final(model, saved, push_of()) == 1
    output = "".join(capfd.readouterr())
    assert step in hub.steps
    assert advice in output
    assert f"The model is safe in {saved}" in output
    assert f"hf upload {NAME} {saved} ." in output
    assert TOKEN not in output + caplog.text
    assert contents(saved) == on_disk
    assert (hub.files(NAME) if NAME in hub.repositories else None) == on_hub
    hub.faults.clear()
    assert push_final(model, saved, push_of()) == 0
    np.testing.assert_array_equal(CrossEncoder(NAME, cache_folder=fresh()).predict(PAIRS), model.predict(PAIRS))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_private_push_to_a_public_repository_is_refused(
    hub: FakeHub, saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The Hub would keep the repository public and say nothing."""
    model = tiny_bert(seed=6)
    model.push_to_hub(NAME, token=TOKEN)
    hub.steps.clear()
    assert push_final(model, saved, push_of(private=True)) == 1
    output = capsys.readouterr().err
    assert f"{NAME} is public already" in output
    assert f"hf upload {NAME} {saved} . --private" in output
    assert hub.steps == ["info"]
    assert push_final(model, saved, push_of(repo_id="owner/other", private=True)) == 0
    assert push_final(model, saved, push_of(repo_id="owner/other", private=True)) == 0  # private already
    assert hub.repositories["owner/other"].private


def test_a_push_to_a_branch(hub: FakeHub, saved: Path) -> None:
    assert push_final(tiny_bert(seed=5), saved, push_of(revision="trial")) == 0
    assert hub.files(NAME) == {}
    assert hub.files(NAME, "trial")["README.md"] == (saved / "README.md").read_bytes()


def test_a_push_as_a_pull_request_leaves_the_main_branch_alone_and_needs_no_right_to_write_there(
    hub: FakeHub, saved: Path, fresh: Callable[[], str], capfd: pytest.CaptureFixture[str]
) -> None:
    first, model = tiny_bert(seed=6), tiny_bert(seed=5)
    first.push_to_hub(NAME, token=TOKEN)
    on_main = hub.files(NAME)
    hub.faults["create"] = 403  # what the Hub says of a repository of others, known or not
    hub.faults["commit"] = 500
    assert push_final(model, saved, push_of(create_pr=True)) == 1
    assert f"hf upload {NAME} {saved} . --create-pr\n" in capfd.readouterr().err
    assert list(hub.repositories[NAME].refs) == ["main"]
    del hub.faults["commit"]
    assert push_final(model, saved, push_of(create_pr=True)) == 0
    assert f"Pushed: {hub.endpoint}/{NAME}/discussions/1\n" in capfd.readouterr().out
    assert hub.files(NAME) == on_main
    assert hub.files(NAME, "refs/pr/1").items() >= contents(saved).items()
    for revision, own in (("main", first), ("refs/pr/1", model)):
        loaded = CrossEncoder(NAME, revision=revision, cache_folder=fresh())
        np.testing.assert_array_equal(loaded.predict(PAIRS), own.predict(PAIRS))


def test_the_arguments_keep_no_token_for_the_checkpoints(tmp_path: Path) -> None:
    args = CrossEncoderTrainingArguments(
        str(tmp_path), push_to_hub=True, hub_token=TOKEN, hub_model_id=NAME, hub_private_repo=True, use_cpu=True
    )
    assert push_settings(args, create_pr=True) == push_of(private=True, create_pr=True)
    assert not args.push_to_hub
    assert TOKEN not in str(vars(args))


WORDS = ["bear", "paris", "light", "stone"]
ROWS = [
    {"query": f"find {w} {v}", "docs": [f"a {w} here", f"not {v}", "nothing"], "labels": [1, 0, 0]}
    for w in WORDS
    for v in WORDS
]
SCRIPTS = {
    "pointwise": (train_listwise.ScriptArguments, CrossEncoder, "python examples/ms_marco/train_listwise.py"),
    "set": (train_text.SetRankArguments, SetRankCrossEncoder, "python examples/setrank/train_text.py"),
}


@pytest.mark.parametrize(
    ("kind", "revision", "page"), [("pointwise", "main", ""), ("set", "refs/pr/1", "discussions/1\n")], ids=SCRIPTS
)
def test_the_script_pushes_what_it_saved_and_the_token_is_nowhere(
    hub: FakeHub,
    fresh: Callable[[], str],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    kind: str,
    revision: str,
    page: str,
) -> None:
    script, load, command = SCRIPTS[kind]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    tiny_bert().save_pretrained(str(tmp_path / "tiny"))
    words = f"""--dataset {tmp_path}/rows.jsonl --test_file {tmp_path}/rows.jsonl --model {tmp_path}/tiny
        --output_dir {tmp_path}/out --loss LambdaLoss --max_steps 4 --use_cpu 1 --disable_tqdm 1 --eval_steps 2
        --save_steps 2 --push_to_hub --hub_model_id {NAME} --hub_private_repo true --hub_token {TOKEN}""".split()
    words += ["--create_pr"] if page else []
    with caplog.at_level(logging.DEBUG):
        status = train_listwise.main([*words, "--loss_args", '{"k": 3}'], script)
    output = "".join(capfd.readouterr())
    assert status == 0
    assert f"Pushed: {hub.endpoint}/{NAME}/{page}" in output
    final = tmp_path / "out" / "final"
    assert hub.files(NAME, revision) == contents(final)
    loaded = load(NAME, revision=revision, token=TOKEN, cache_folder=fresh())
    np.testing.assert_array_equal(loaded.predict(PAIRS), load(str(final)).predict(PAIRS))

    card = hub.files(NAME, revision)["README.md"].decode()
    assert '"k": 3' in card  # sentence-transformers' part: the loss, the data, the settings
    assert f'CrossEncoder("{NAME}")' in card
    (line,) = re.findall(r"^\| test \| after \| (.+) \|$", card, re.MULTILINE)  # and ours: figures and their spread
    measured = json.loads((tmp_path / "out" / "metrics.json").read_text())["metrics"]["test"]["after"]
    for cell, mean in zip(line.split(" | "), measured.values(), strict=True):
        value, low, high = map(float, re.fullmatch(r"([\d.]+) \(([\d.]+)–([\d.]+)\)", cell).groups())  # type: ignore[union-attr]
        assert value == pytest.approx(mean, abs=5e-5)
        assert low <= value + 5e-4
        assert high >= value - 5e-4
    assert f"{command} --dataset" in card
    assert f"--hub_model_id {NAME} --hub_private_repo true --hub_token ..." in card
    assert card.index("## Limits") < card.index("## Citation")

    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert any(path.name == "training_args.bin" for path in files)
    assert [path for path in files if TOKEN.encode() in path.read_bytes()] == []
    assert TOKEN not in output + caplog.text
    assert [name for name, content in hub.objects.items() if TOKEN.encode() in content] == []
