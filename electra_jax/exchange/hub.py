"""Upload of an export to the Hugging Face hub."""

import os
import re
from collections.abc import Sequence

from electra_jax.errors import UserError

LOGIN = "log in with `hf auth login`, or export HF_TOKEN with a token that may write"


def repositories(name: str, networks: Sequence[str]) -> dict[str, str]:
  """Network -> repository: of several networks each has its own.

  >>> repositories("me/mine", [""]), repositories("me/mine", ["discriminator", "generator"])
  ({'': 'me/mine'}, {'discriminator': 'me/mine-discriminator', 'generator': 'me/mine-generator'})
  """
  return {network: f"{name}-{network}" if network else name for network in networks}


def check(name: str) -> None:
  """Finds out before anything is written whether a model can be uploaded under a name.

  Raises:
    UserError: the name is none of the hub, huggingface_hub is not installed, or the hub does not know the user.
  """
  if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
    raise UserError("--push names no repository of the hub", got=name, allowed="USER/MODEL or ORGANISATION/MODEL",
                    fix="for example --push=me/my-electra")
  try:
    _api().whoami()
  except Exception as error:  # its own errors, and those of whichever HTTP library it has
    if isinstance(error, UserError):
      raise
    raise UserError("The Hugging Face hub does not know who uploads", got=f"{type(error).__name__}: {error}",
                    allowed="a token that may write, and a network", fix=LOGIN) from error


def upload(folder: str, repository: str) -> str:
  """Makes the repository if there is none, public unless it exists as a private one, and uploads; its address.

  Raises:
    UserError: the hub refuses; the folder on disk is complete.
  """
  try:
    address = _api().create_repo(repository, exist_ok=True)
    _api().upload_folder(repo_id=repository, folder_path=folder, commit_message="Upload by electra_jax")
  except Exception as error:  # as above
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
