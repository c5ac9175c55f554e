"""Upload of an exported folder to the Hugging Face hub."""

import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rolloutlab.api.http.ip_scope import on_this_machine
from rolloutlab.errors import InputError, ServiceError, SignInError

_HUB = "https://huggingface.co"
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
_SIGN_IN = "%env HF_TOKEN=hf_..., or `hf auth login` in a terminal; a token of https://huggingface.co/settings/tokens"


class Hub:
    """A repository of the hub that a folder is uploaded to.

    repository: OWNER/REPO.

    Raises:
        InputError: it is not such a name, HF_ENDPOINT is neither https nor on this machine, or huggingface_hub is not
            installed.
        SignInError: there is no token.

    All of this is checked before anything is sent.
    """

    def __init__(self, repository: str) -> None:
        if not _REPOSITORY.fullmatch(repository):
            raise InputError(f"{repository!r} is not a repository of the hub", hint="--push OWNER/REPO")
        self.repository = repository
        self.endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or _HUB
        if urlsplit(self.endpoint).scheme != "https" and not on_this_machine(self.endpoint):
            message = f"HF_ENDPOINT={self.endpoint} is not encrypted: the token is not sent there"
            raise InputError(message, hint="%env HF_ENDPOINT=https://huggingface.co")
        try:
            import huggingface_hub
        except ModuleNotFoundError:
            raise InputError("an upload needs huggingface_hub", hint="pip install huggingface_hub") from None
        self._library: Any = huggingface_hub
        self._token = os.environ.get("HF_TOKEN", "").strip() or huggingface_hub.get_token()
        if not self._token:
            raise SignInError("there is no token of the Hugging Face hub", hint=_SIGN_IN)

    @property
    def url(self) -> str:
        """The page of the repository."""
        return f"{self.endpoint}/{self.repository}"

    def upload(self, folder: Path, title: str, note: Callable[[str], None]) -> bool:
        """Upload a folder as one commit; return whether the repository is private.

        A new repository is private; one that exists keeps its visibility. title: the title of the commit.

        Raises:
            SignInError: the hub refuses the token. ServiceError: it refuses or fails. The folder stays.
        """
        hub = self._library.HfApi(endpoint=self.endpoint, token=self._token)
        try:
            note(f"asking for {self.url}")
            hub.create_repo(self.repository, private=True, exist_ok=True, repo_type="model")
            note(f"uploading to {self.url}")
            hub.upload_folder(repo_id=self.repository, folder_path=folder, commit_message=title)
            return bool(hub.repo_info(self.repository).private)
        except Exception as error:  # noqa: BLE001 - it may be one of huggingface_hub, of its HTTP library or of the disk
            status = getattr(getattr(error, "response", None), "status_code", 0)
            words = str(error).replace(self._token, "...").strip() or type(error).__name__
            message = f"the folder is complete, and was not uploaded to {self.url}: {words.splitlines()[0]}"
            if status in {401, 403}:
                raise SignInError(message, hint=_SIGN_IN, status=status) from None
            again = f"!hf upload {self.repository} {shlex.quote(str(folder))}, or the same cell with --overwrite"
            raise ServiceError(message, hint=again, status=status) from None
