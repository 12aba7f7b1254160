"""Paths of a corpus: odd names, globs, links and what cannot be read; no file is left out in silence."""

import errno
import functools
import os
import stat

import pytest

from electra_jax.data.sources.documents import parse_path
from electra_jax.data.sources.files import find_files
from electra_jax.errors import UserError
from tests.data.test_documents import read, write

ODD = ["lr[1e-3]", "[!a]", "a*b", "what?", "{a,b}", "two words ", "ünï 中文", "it's", 'quo"te', "back\\slash", "a=b,c",
       "$HOME", "~", "#1%20", "a;b&c|d", "new\nline", "\udce9", "-x"]


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("form", ["{}", "{}/", "{}/a.txt", "{}/*.txt", "{}/**", "{}/**/*.txt", "{}/[a].txt"])
def test_odd_names_of_folders(tmp_path, name, form):
  write(tmp_path / name / "a.txt", "right")
  for other in ("lr1", "lre", "b", "axb", "whats", "a"):  # what such a name would match as a pattern
    write(tmp_path / other / "a.txt", "wrong")
  assert read(form.format(tmp_path / name)) == [["right"]]


@pytest.mark.parametrize("name", ODD)
def test_odd_names_of_files(tmp_path, name):
  write(tmp_path / name, "right")
  assert read(tmp_path / name) == [["right"]] == read(tmp_path)


def test_several_sources_with_brackets(tmp_path):
  for name in ("a.txt", "b.txt", "c.txt"):
    write(tmp_path / "x[1]" / name, name)
  assert parse_path("x[a,b].txt, c[d]*2") == [("x[a,b].txt", 1.0), ("c[d]", 2.0)]
  assert sorted(read(f"{tmp_path}/x[1]/[a,b].txt,{tmp_path}/x[1]/c.txt*2")) == [
    ["a.txt"], ["b.txt"], ["c.txt"], ["c.txt"]]


def test_the_home_folder(tmp_path, monkeypatch):
  monkeypatch.setenv("HOME", str(tmp_path))
  for name in "abc":
    write(tmp_path / "texts" / f"{name}.txt", name)
  assert read("~/texts") == read("~/texts/*.txt") == [["a"], ["b"], ["c"]]
  assert sorted(read("~/texts/a.txt, ~/texts/b.txt*2")) == [["a"], ["b"], ["b"]]


def link(path, target):
  path.parent.mkdir(parents=True, exist_ok=True)
  path.symlink_to(target)


@pytest.mark.parametrize("form", ["", "**", "**/*.txt"])
def test_links_are_followed_and_nothing_is_read_twice(tmp_path, form):
  corpus = tmp_path / "corpus"
  for name in ("corpus/a.txt", "corpus/d/b.txt", "elsewhere/c.txt", "elsewhere/deep/d.txt"):
    write(tmp_path / name, name)
  link(corpus / "linked", tmp_path / "elsewhere")  # a folder outside
  link(corpus / "again", tmp_path / "elsewhere" / "deep")  # a folder that another link leads to
  link(corpus / "d" / "up", corpus)  # a circle
  link(corpus / "self", ".")
  link(corpus / "e.txt", tmp_path / "elsewhere" / "c.txt")  # a file has a name of its own
  found = sorted(text for (text,) in read(f"{corpus}/{form}" if form else corpus))
  assert found == ["corpus/a.txt", "corpus/d/b.txt", "elsewhere/c.txt", "elsewhere/c.txt", "elsewhere/deep/d.txt"]
  link(tmp_path / "whole", corpus)
  assert sorted(text for (text,) in read(tmp_path / "whole")) == found


UNREADABLE = {  # what is made of a corpus that also has a good file -> what the error names
  "folder": (lambda root: write(root / "shut" / "a.txt", "x").parent.chmod(0), "shut: permission denied"),
  "deep folder": (lambda root: write(root / "a" / "shut" / "a.txt", "x").parent.chmod(0), "shut: permission denied"),
  "linked folder": (lambda root: (write(root.parent / "shut" / "a.txt", "x").parent.chmod(0),
                                  link(root / "l", root.parent / "shut")), "l: permission denied"),
  "file": (lambda root: write(root / "shut.txt", "x").chmod(0), "shut.txt: permission denied"),
  "dangling link": (lambda root: link(root / "l.txt", root / "nowhere"), "l.txt"),
  "pipe": (lambda root: os.mkfifo(root / "p.txt"), "p.txt")}


def scandir_as_a_user(scandir, path="."):
  if not os.stat(path).st_mode & stat.S_IRUSR:
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
  return scandir(path)


@pytest.mark.parametrize("name", UNREADABLE)
@pytest.mark.parametrize("form", ["{}", "{}/**", "{}/**/*.txt", "{}/*"])
def test_what_cannot_be_read_is_told(tmp_path, monkeypatch, name, form):
  write(tmp_path / "corpus" / "good.txt", "x")
  make, words = UNREADABLE[name]
  make(tmp_path / "corpus")
  if os.geteuid() == 0:  # who may read everything
    monkeypatch.setattr(os, "access", lambda path, mode: bool(os.stat(path).st_mode & stat.S_IRUSR))
    monkeypatch.setattr(os, "scandir", functools.partial(scandir_as_a_user, os.scandir))
  with pytest.raises(UserError) as caught:
    find_files(form.format(tmp_path / "corpus"))
  assert words in caught.value.got


def test_hidden_files_are_named(tmp_path):
  for name in ("a.txt", ".b.txt", ".git/c.txt", "d/.e"):
    write(tmp_path / name, "x")
  hidden = []
  assert find_files(str(tmp_path), hidden) == [str(tmp_path / "a.txt")]
  assert sorted(hidden) == sorted(str(tmp_path / name) for name in (".b.txt", ".git", "d/.e"))


@pytest.mark.parametrize("form", ["{}/nothing", "{}/a.txt/b", "{}/a.txt/", "{}/x[1]/nothing.txt", "$HOME/x",
                                  "~nobody9/x"])
def test_a_path_that_leads_nowhere(tmp_path, form):
  write(tmp_path / "a.txt", "x")
  write(tmp_path / "x[1]" / "a.txt", "x")
  with pytest.raises(UserError, match="does not exist"):
    find_files(form.format(tmp_path))
