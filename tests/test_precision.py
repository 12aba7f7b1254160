"""Does the comparison of two precisions add up and draw what it says?"""

from benchmarks import precision

FOUND = {"float32": [{10: 1.0, 20: 2.0}, {10: 3.0, 20: 2.0, 30: 9.0}],
         "bfloat16": [{10: 1.5, 20: 2.0}, {10: 3.5, 20: 1.0}]}


def test_table():
  _, first, second = precision.table(FOUND, windows=2).splitlines()  # steps that all runs have logged
  assert first.split() == ["10", "to", "10", "2.0000", "2.5000", "+0.5000", "+-", "0.0000", "1.4142"]
  assert second.split() == ["20", "to", "20", "2.0000", "1.5000", "-0.5000", "+-", "0.5000", "0.0000"]


def test_picture(tmp_path):
  precision.draw({"mlm/loss": FOUND, "rtd/loss": FOUND}, str(tmp_path / "curves.png"))
  assert (tmp_path / "curves.png").stat().st_size > 1000
