"""Hugging Face hub: download of published weights by name, upload of exports."""

import functools
import os
import re
from collections.abc import Sequence

from electra_jax.errors import UserError

NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")  # MODEL or OWNER/MODEL
SECONDS = 1.5  # that the hub has for its first answer
DESCRIPTION = ("*.json", "*.txt", "*.model", "README.md")  # sizes and vocabulary
WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # the second if there is no first
LOGIN = "log in with `hf auth login`, or export HF_TOKEN with a token that may write"


def fetch(path: str) -> str:
  """The path itself if it exists; for the name of a model on the hub, its folder in the hub's local cache.

  Cached files are not downloaded again and need no network.

  Raises:
    UserError: huggingface_hub is not installed, the hub has no such model, or it does not answer.
  """
  path = os.fspath(path)
  is_here = os.path.exists(path) or os.path.exists(f"{path}.index")  # a TensorFlow prefix is not a file itself
  return path if is_here or not NAME.fullmatch(path) else _download(path)


@functools.cache
def _download(name: str) -> str:
  try:
    import huggingface_hub
  except ImportError as error:
    raise _nowhere(name, "huggingface_hub, which could download a model of that name, is not installed",
                   "or pip install huggingface_hub") from error
  fault = None
  try:  # first, as the download itself waits for ever if the hub does not answer
    huggingface_hub.HfApi().model_info(name, timeout=SECONDS)
  except Exception as error:  # its own errors, and those of whichever HTTP library it uses
    fault = error
  try:
    for weights in WEIGHTS:
      folder = huggingface_hub.snapshot_download(name, allow_patterns=[*DESCRIPTION, weights],
                                                 local_files_only=fault is not None)
      if weights in os.listdir(folder):
        break
  except Exception as error:  # as above
    said = fault or error
    raise _nowhere(name, "the Hugging Face hub gives no model of that name "
                   f"({type(said).__name__}: {(str(said).splitlines() or [''])[0]})",
                   f"or the name and the network; on a machine with one, hf download {name} "
                   f"--local-dir=models/{name.split('/')[-1]}, and give that folder") from error
  print(f"{name} is not a path here, so it was taken from the Hugging Face hub; it is now in {folder}.", flush=True)
  return folder


def _nowhere(name: str, reason: str, fix: str) -> UserError:
  return UserError(f"No run can be read from {name}", got=f"there is no such file or folder, and {reason}",
                   allowed="a run's workdir, published weights on this machine, or a name of the Hugging Face hub",
                   fix=f"check the path, {fix}")


def repositories(name: str, networks: Sequence[str]) -> dict[str, str]:
  """Network -> repository; each of several networks has its own.

  >>> repositories("me/mine", [""]), repositories("me/mine", ["discriminator", "generator"])
  ({'': 'me/mine'}, {'discriminator': 'me/mine-discriminator', 'generator': 'me/mine-generator'})
  """
  return {network: f"{name}-{network}" if network else name for network in networks}


def check(name: str) -> None:
  """Checks, before anything is written, that a model can be uploaded under a name.

  Raises:
    UserError: the name is not valid on the hub, huggingface_hub is not installed, or the hub does not know the user.
  """
  if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
    raise UserError("--push does not name a repository of the hub", got=name,
                    allowed="USER/MODEL or ORGANISATION/MODEL", fix="for example --push=me/my-electra")
  api = _api()
  try:
    api.whoami()
  except Exception as error:  # as in `_download`
    raise UserError("The Hugging Face hub does not know who is uploading", got=f"{type(error).__name__}: {error}",
                    allowed="a token that may write, and a network", fix=LOGIN) from error


def upload(folder: str, repository: str) -> str:
  """Uploads a folder and returns the repository's address; a repository that does not exist yet is made, public.

  Raises:
    UserError: the hub refuses; the folder on disk is complete.
  """
  try:
    address = _api().create_repo(repository, exist_ok=True)
    _api().upload_folder(repo_id=repository, folder_path=folder, commit_message="Upload by electra_jax")
  except Exception as error:  # as in `_download`
    raise UserError(f"The upload to {repository} has failed", got=f"{type(error).__name__}: {error}",
                    allowed="a token that may write there, and a network",
                    fix=f"{LOGIN}; then `hf upload {repository} {os.path.normpath(folder)}`: it is complete") from error
  return str(address)


def _api():
  try:
    from huggingface_hub import HfApi
  except ImportError as error:
    raise UserError("--push needs a package that is not installed", got=str(error), allowed="huggingface_hub",
                    fix="pip install huggingface_hub, or leave --push out") from error
  return HfApi()
