"""How is a recipe loaded by its path, for tools that take several of them? (`main` takes one, as a flag.)"""

import importlib.util
import os
import sys

from ml_collections import ConfigDict

from electra_jax.errors import UserError


def load(argument: str) -> tuple[str, ConfigDict]:
  """(docstring, config) of FILE or FILE:variant; the config is not resolved yet.

  Raises:
    UserError: the file is no recipe.
  """
  path, _, variant = argument.partition(":")
  if os.getcwd() not in sys.path:
    sys.path.insert(0, os.getcwd())  # recipes import each other from the root of the repository
  try:
    spec = importlib.util.spec_from_file_location(f"recipe_{os.path.basename(path)[:-3]}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    given = module.get_config(variant) if variant else module.get_config()
  except Exception as error:  # a recipe is a program: it can raise anything
    raise UserError("The recipe cannot be loaded", got=f"{argument}: {error}",
                    allowed="a Python file with get_config, like those in configs/",
                    fix="check the path, or correct the file") from error
  return (module.__doc__ or "").strip(), given
