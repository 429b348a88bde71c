"""The push of a saved model to the Hub: once, at the end, of what lies on disk; a failure says what to do."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, get_token
from huggingface_hub.errors import RepositoryNotFoundError
from sentence_transformers import CrossEncoder, CrossEncoderTrainingArguments

#: HTTP status → what to do about it.
REMEDIES = {
    401: "The Hub does not accept the token. Make one with write access, and log in: hf auth login",
    403: "The token may not write to {repo_id}: use one with write access, another --hub_model_id, or --create_pr.",
    409: "Something else is changing {repo_id}: look at it there, then push again.",
}
LATER = "The Hub could not be reached, or failed itself: wait a little, then push again."


def push_settings(args: CrossEncoderTrainingArguments, create_pr: bool = False) -> dict[str, Any] | None:
    """Takes the push out of the trainer's hands: it would push every checkpoint, and before anything is trained.

    The token goes with it, as every checkpoint holds the arguments.

    Args:
        args: What the push is taken from.
        create_pr: Push as a pull request, which changes nothing in the repository until it is merged.

    Raises:
        ValueError: there is no repository to push to, or a pull request is wanted without a push.
    """
    push = {
        "repo_id": args.hub_model_id,
        "token": args.hub_token,
        "private": args.hub_private_repo,
        "revision": args.hub_revision,
        "create_pr": create_pr,
    }
    args.hub_token = None
    if not args.push_to_hub:
        if create_pr:
            raise ValueError("--create_pr is for --push_to_hub, which is not given.")
        return None
    if (args.hub_model_id or "").count("/") != 1:
        raise ValueError("--push_to_hub needs --hub_model_id owner/name.")
    args.push_to_hub = False
    return push


def push_final(model: CrossEncoder, folder: Path, push: dict[str, Any]) -> int:
    """One commit of what lies saved; returns the exit status. A failure loses nothing and says how to go on."""
    try:
        check_privacy(push)
        url = model.push_to_hub(**push, local_model_path=str(folder), exist_ok=True)
    except Exception as error:  # of the network, the Hub, or the account
        message = f"{type(error).__name__}: {error}".replace(push["token"] or get_token() or "\0", "...")
        print(
            f"error: the push failed ({message})\n{remedy(error, push['repo_id'])}\n"
            f"The model is safe in {folder}; a push is one commit, all of it or nothing. To push it by hand:\n"
            f"    hf auth login\n    {upload_command(folder, push)}",
            file=sys.stderr,
        )
        return 1
    print(f"Pushed: {url}")
    return 0


def check_privacy(push: dict[str, Any]) -> None:
    """The Hub does not make an existing repository private, and does not say so either."""
    if not push["private"]:
        return
    try:
        public = not HfApi(token=push["token"]).repo_info(push["repo_id"]).private
    except RepositoryNotFoundError:
        return
    if public:
        raise ValueError(
            f"{push['repo_id']} is public already, and --hub_private_repo would not change that. Make it private in "
            "its settings, or give another --hub_model_id"
        )


def remedy(error: BaseException, repo_id: str) -> str:
    """What to do about a push that failed, from the status that the Hub answered with, if it did."""
    cause: BaseException | None = error
    while cause is not None:
        if status := getattr(getattr(cause, "response", None), "status_code", None):
            return REMEDIES.get(status, LATER if status >= 500 else "").format(repo_id=repo_id)
        cause = cause.__cause__
    return "" if isinstance(error, ValueError) else LATER


def upload_command(folder: Path, push: dict[str, Any]) -> str:
    words = ["hf", "upload", push["repo_id"], str(folder), "."]
    words += ["--private"] if push["private"] else []
    words += ["--revision", push["revision"]] if push["revision"] else []
    words += ["--create-pr"] if push["create_pr"] else []
    return shlex.join(words)
