"""Does the tool write shards and statistics?"""

from configs import common, variants
from electra_jax import config as config_lib
from electra_jax.data.shards import manifest
from electra_jax.tools import prepare_data


def test_prepare_data(tmp_path):
  path = tmp_path / "a.jsonl"
  path.write_text("".join(f'{{"text": "document {i}\\nhas {i % 7} words or so\\nand an end"}}\n' for i in range(200))
                  + '{"no text": 1}\n')
  given = variants.tiny(common.defaults())
  given.data.update(path=str(path), format="SEGMENT-PAIR", on_bad_record="skip", num_workers=1, sequence_length=32)
  given.data.tokenizer.update(kind="wordpiece", vocab_size=120)
  found = prepare_data.prepare_data(config_lib.resolve(given), str(tmp_path / "out"))
  assert found == manifest.read_manifest(str(tmp_path / "out" / "shards"))
  table = prepare_data.statistics_table(found)
  assert 'skipped records: 1 (A record has no field "text")' in table and "random pairs" in table
  lengths = found["statistics"]["train"]["examples_of_length"]
  assert sum(lengths.values()) == found["statistics"]["train"]["examples"]
