"""Messages that stay short whatever the input is."""

import pickle

import pytest

from electra_jax.errors import NoAnswerError, UserError, named

ALL = ("what", "got", "allowed", "fix")
LONG = "x" * 100_000
PARTS = {  # which parts of the message are long
  "none": (), "what": ("what",), "got": ("got",), "allowed": ("allowed",), "fix": ("fix",),
  "what and got": ("what", "got"), "allowed and fix": ("allowed", "fix"), "all": ALL,
}


@pytest.mark.parametrize("row", PARTS)
def test_a_message_has_four_parts_below_2000_characters(row):
  what, got, allowed, fix = (LONG if name in PARTS[row] else f"a short {name}" for name in ALL)
  for kind in (UserError, NoAnswerError):
    error = pickle.loads(pickle.dumps(kind(what, got=got, allowed=allowed, fix=fix)))  # as worker processes send it
    assert len(str(error)) < 2_000
    assert [line.split()[0] for line in str(error).splitlines()[1:]] == ["got:", "allowed:", "fix:"]
    for name in ALL:
      assert ("more characters)" in getattr(error, name)) == (name in PARTS[row])


def test_a_list_of_faults_is_shown_whole():
  faults = "".join(f"\n    fault {number} " + "x" * 100 for number in range(10))
  assert UserError("What", got=faults, allowed="a", fix="b").got == faults


def test_ten_thousand_names():
  assert named([f"class_{i}" for i in range(10_000)], most=3) == "class_0, class_1, class_2 and 9,997 more"
