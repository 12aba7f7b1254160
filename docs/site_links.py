"""Links of the site: those that leave docs/ go to the repository; without REPO_URL only their text stays."""

import os
import re

LINK = re.compile(r"\[([^\]\[]+)\]\((\.\./[^)#\s]+)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, page, config, files) -> str:
  """MkDocs' hook. A link into docs/ stays; so does one to a file that is not there, and fails a strict build."""
  del files
  folder = os.path.dirname(page.file.abs_src_path)
  root = os.path.dirname(config.config_file_path)

  def replace(match: re.Match) -> str:
    text, target, anchor = match.groups(default="")
    path = os.path.normpath(os.path.join(folder, target))
    if path.startswith(config.docs_dir + os.sep) or not os.path.exists(path):
      return match.group()
    if not config.repo_url:
      return text
    return f"[{text}]({config.repo_url.rstrip('/')}/blob/main/{os.path.relpath(path, root)}{anchor})"

  return LINK.sub(replace, markdown)
