"""Masks in a text reach the right place; answers do not depend on padding and batching; wrong input is told."""

import doctest
import os
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from ml_collections import ConfigDict

from configs import base, bert_small, roberta_base
from electra_jax import sharding
from electra_jax.data import sentences, tokenizers
from electra_jax.errors import UserError
from electra_jax.inference import pretraining_heads
from electra_jax.training import checkpoints
from tests.workdirs import TEXT, make_workdir


@pytest.fixture(scope="module", params=("sentencepiece", "wordpiece", "byte_bpe"))
def tokenizer(request, tmp_path_factory):
  config = ConfigDict(dict(kind=request.param, vocab_size=400, lowercase=True, training_bytes=100_000))
  folder = str(tmp_path_factory.mktemp("tokenizers") / request.param)
  return tokenizers.train_tokenizer(config, iter(TEXT * 20), folder, seed=0)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  return pretraining_heads.load(make_workdir(tmp_path_factory.getbasetemp(), base, "sentencepiece"))


@pytest.fixture(scope="module")
def roberta(tmp_path_factory):
  return pretraining_heads.load(make_workdir(tmp_path_factory.getbasetemp(), roberta_base, "byte_bpe"))


# ---- text and ids ----


@pytest.mark.parametrize("mask", ["[MASK]", "<mask>"])
def test_a_written_mask_gives_the_ids_that_masking_gives(tokenizer, mask):
  """Each token in turn hidden in the text, as a user does, and hidden in the ids, as training does."""
  hidden = 0
  for text in TEXT:
    whole = sentences.encode(tokenizer, text, 64)
    for position in whole.ordinary:
      start, end = whole.offsets[position]
      if sum(first < end and last > start for first, last in whole.offsets) > 1 or start == end:
        continue
      if text[start:end].isalpha() and (text[start - 1:start].isalpha() or text[end:end + 1].isalpha()):
        continue  # a mask inside a word: what is left of it is tokenized anew
      hidden += 1
      masked = sentences.encode(tokenizer, text[:start] + mask + text[end:], 64)
      bare = [i for i in whole.ids if tokenizer.tokens([i]) != ["▁"]]  # SentencePiece's lone space may come and go
      expected = list(whole.ids)
      expected[position] = tokenizer.mask_id
      expected = [i for i in expected if i in (*bare, tokenizer.mask_id)]
      assert [i for i in masked.ids if i in (*bare, tokenizer.mask_id)] == expected
      (at,) = masked.masks
      assert masked.ids[at] == tokenizer.mask_id and masked.text[slice(*masked.offsets[at])] == mask
      back = sentences.put_in(tokenizer, masked, {at: whole.ids[position]})
      assert back.masks == [] and back.text[slice(*back.offsets[at])] == text[start:end]
      assert back.text == text or tokenizer.tokens([whole.ids[position - 1]]) == ["▁"]
  assert hidden > 15


def test_masks_side_by_side_and_at_the_ends(tokenizer):
  only = sentences.encode(tokenizer, "[MASK]<mask>", 8)
  assert only.ids == [tokenizer.cls_id, tokenizer.mask_id, tokenizer.mask_id, tokenizer.sep_id]
  assert only.masks == [1, 2] and only.offsets == [(0, 0), (0, 6), (6, 12), (12, 12)]
  spaced = sentences.encode(tokenizer, "  [MASK]  cat   <mask> ", 32)
  assert spaced.masks == [1, len(spaced.ids) - 2]
  assert "".join(tokenizer.decode(spaced.ids[2:-2])).strip() == "cat"


def test_put_in_keeps_offsets_of_what_stays():
  class Words:
    prefix = "##"
    kind, special_ids = "wordpiece", (0,)

    def tokens(self, ids):
      return [["[PAD]", "##s", "roof", "."][i] for i in ids]

  offsets = [(0, 0), (0, 1), (2, 5), (6, 9), (9, 10), (10, 10)]
  sentence = sentences.Sentence("a cat sat.", [0, 9, 9, 9, 9, 0], offsets, [])
  changed = sentences.put_in(Words(), sentence, {2: 2, 3: 1})
  assert changed.text == "a roofs." and changed.ids == [0, 9, 2, 1, 9, 0]
  assert [changed.text[slice(*offset)] for offset in changed.offsets] == ["", "a", "roof", "s", ".", ""]


@pytest.mark.parametrize("text, what", [("", "empty"), (" \n", "empty"), ("the cat " * 80, "too long")])
def test_text_that_cannot_be_answered(run, text, what):
  with pytest.raises(UserError, match=what):
    pretraining_heads.encode(run, text)


def test_batches_come_in_few_shapes(run):
  def shape(num_rows, num_words, num_masks=0):
    row = pretraining_heads.encode(run, "a " * num_words + "[MASK]" * num_masks)
    batch = pretraining_heads.make_batch(run, [row] * num_rows)
    return (*batch["input_ids"].shape, batch["masked_positions"].shape[1])

  assert shape(1, 3) == shape(1, 9, 2) == (1, 16, 2)
  assert shape(5, 17, 3) == shape(16, 25, 5) == (16, 32, 8)
  assert shape(1, 62) == (1, 64, 2)  # not beyond the position table


# ---- answers ----


def unpadded(run, sentence):
  row = {"input_ids": np.array([sentence.ids], np.int32), "masked_positions": np.array([sentence.masks], np.int32)}
  row |= {"token_type_ids": np.zeros_like(row["input_ids"]), "attention_mask": np.ones_like(row["input_ids"], bool)}
  return jax.tree.map(jnp.asarray, row | {"masked_input_ids": row["input_ids"]})


QUESTIONS = ["the [MASK] sat on the mat", "a dog", "[MASK] [MASK] rain fell on the <mask>, all day and all night.",
             "nobody had [MASK]"]


@pytest.mark.parametrize("which", ["run", "roberta"])
def test_fill_mask_is_the_softmax_at_the_mask(which, request):
  run = request.getfixturevalue(which)
  found = pretraining_heads.fill_mask(run, QUESTIONS, top_k=7)
  assert [len(masks) for masks in found] == [1, 0, 3, 1]
  sentence = pretraining_heads.encode(run, QUESTIONS[2])
  rows = np.asarray(jax.nn.softmax(jax.jit(run.network.mlm_logits)(run.params, unpadded(run, sentence))[0]))
  for candidates, row in zip(found[2], rows):
    ordinary = [i for i in np.argsort(-row) if i not in run.tokenizer.special_ids]
    np.testing.assert_allclose([c.probability for c in candidates], row[ordinary[:7]], rtol=2e-4)
    np.testing.assert_allclose(row[[c.token_id for c in candidates]], row[ordinary[:7]], rtol=2e-4)


def test_detect_replaced_is_the_discriminator_on_the_bare_sentence(run):
  found = pretraining_heads.detect_replaced(run, TEXT)
  assert [[(token.start, token.end) for token in tokens] for tokens in found] == [
    pretraining_heads.encode(run, text).offsets[1:-1] for text in TEXT]
  row = unpadded(run, pretraining_heads.encode(run, TEXT[1]))
  expected = jax.nn.sigmoid(jax.jit(run.network.rtd_logits)(run.params, row, row["input_ids"]))[0, 1:-1]
  np.testing.assert_allclose([token.probability for token in found[1]], expected, rtol=2e-4)
  assert np.ptp([token.probability for tokens in found for token in tokens]) > 0.1


def test_words_take_the_highest_probability_of_their_pieces(tokenizer):
  for text in [*TEXT, "it's a café, naïve 中文 🙂!"]:
    sentence = sentences.encode(tokenizer, text, 128)
    drawn = np.random.default_rng(0).uniform(size=len(sentence.ids))
    tokens = [pretraining_heads.TokenScore(*sentence.offsets[i], drawn[i]) for i in sentence.ordinary]
    words = pretraining_heads.judge_words(text, tokens)
    assert [text[word.start:word.end] for word in words] == [w.group() for w in pretraining_heads.WORD.finditer(text)]
    visible = [t.probability for t in tokens if text[t.start:max(t.end, t.start + 1)].strip()]
    assert max(word.probability for word in words) == max(visible)
    for word in words:
      inside = [t.probability for t in tokens if word.start <= t.start and t.end <= word.end and t.start < t.end]
      assert not inside or word.probability >= max(inside)


def test_corrupt_changes_masked_positions_only(run):
  rows = [pretraining_heads.encode(run, f"{text} [MASK] [MASK]") for text in TEXT]
  batch = pretraining_heads.make_batch(run, rows)
  corrupted = pretraining_heads.corrupt(run, batch, seed=1)
  masked = batch["masked_input_ids"] == run.tokenizer.mask_id
  assert 0 < (corrupted != batch["input_ids"]).sum() <= masked.sum() == batch["masked_weights"].sum()
  np.testing.assert_array_equal(corrupted[~masked], batch["input_ids"][~masked])
  np.testing.assert_array_equal(corrupted, pretraining_heads.corrupt(run, batch, seed=1))
  assert (corrupted != pretraining_heads.corrupt(run, batch, seed=2)).any()


def test_answer_holds_together(run):
  texts = ["the [MASK] sat on the mat", TEXT[1], TEXT[2]]
  filled, plain, _ = pretraining_heads.answer(run, texts, top_k=7)
  assert filled.filled.ids[filled.sentence.masks[0]] == filled.candidates[0][0].token_id
  assert plain.candidates == [] and plain.filled == plain.sentence
  (alone,) = pretraining_heads.answer(run, texts[1:2])
  np.testing.assert_allclose([w.probability for w in alone.words], [w.probability for w in plain.words], rtol=2e-4)


def test_masked_lm_has_no_discriminator(roberta):
  with pytest.raises(UserError, match="no discriminator") as error:
    pretraining_heads.detect_replaced(roberta, ["the cat"])
  assert "objective.name='mlm'" in error.value.got
  with pytest.raises(UserError, match="no generator"):
    row = pretraining_heads.encode(roberta, "the cat")
    pretraining_heads.corrupt(roberta, pretraining_heads.make_batch(roberta, [row]))
  with pytest.raises(UserError, match="nothing to predict"):
    pretraining_heads.answer(roberta, ["the cat"])
  assert pretraining_heads.answer(roberta, ["the [MASK]"])[0].words is None
  fine_tuned = roberta._replace(network=roberta.network._replace(mlm_logits=None))
  with pytest.raises(UserError, match="no masked LM") as error:
    pretraining_heads.fill_mask(fine_tuned, ["the [MASK]"])
  assert "--task=classify" in error.value.fix
  with pytest.raises(UserError, match="neither fills masks nor judges words") as error:
    pretraining_heads.answer(fine_tuned, ["the cat"])
  assert "--task=classify" in error.value.fix


def test_vectors_of_a_run_do_not_depend_on_the_current_folder(run, tmp_path, monkeypatch):
  (tmp_path / "modules.json").write_text("[]")  # of sentence-transformers
  monkeypatch.chdir(tmp_path)
  np.testing.assert_array_equal(pretraining_heads.embed(run, TEXT[:1]), pretraining_heads.embed(run, TEXT[:1], "mean"))


def test_top_k_is_at_most_the_ordinary_tokens(run):
  ((candidates,),) = pretraining_heads.fill_mask(run, ["a [MASK]"], top_k=100_000)
  assert len(candidates) == (~pretraining_heads.special_rows(run)).sum()


# ---- loading ----


@pytest.fixture
def workdir(run, tmp_path_factory, tmp_path):
  return shutil.copytree(make_workdir(tmp_path_factory.getbasetemp(), base, "sentencepiece"), tmp_path / "copy")


def test_load_takes_the_newest_or_the_given_step_without_a_word(workdir, run, caplog):
  older = pretraining_heads.load(workdir, step=20)
  assert (older.step, run.step, checkpoints.saved_steps(workdir)) == (20, 40, [20, 40])
  assert any((a != b).any() for a, b in zip(jax.tree.leaves(older.params), jax.tree.leaves(run.params)))
  assert not caplog.records


def test_load_without_a_run_or_a_checkpoint(workdir):
  with pytest.raises(UserError, match="No checkpoint to read") as error:
    pretraining_heads.load(workdir, step=30)
  assert error.value.got == "steps [20, 40], asked for 30"
  shutil.rmtree(workdir / "checkpoints")
  with pytest.raises(UserError, match="No checkpoint to read"):
    pretraining_heads.load(workdir)
  with pytest.raises(UserError, match="No run can be read"):
    pretraining_heads.load(str(workdir) + "_nowhere")


def test_damaged_checkpoint_names_the_other_steps(workdir):
  data = workdir / "checkpoints/40/default"
  for name in os.listdir(data):
    if name.startswith(("manifest", "d", "ocdbt")):
      shutil.rmtree(data / name) if (data / name).is_dir() else os.remove(data / name)
  with pytest.raises(UserError, match="cannot be read") as error:
    pretraining_heads.load(workdir)
  assert "20" in error.value.fix and pretraining_heads.load(workdir, step=20).step == 20


def test_load_params_with_shardings_and_with_another_model(workdir, run, tmp_path_factory):
  mesh = sharding.make_mesh({"data": 2, "fsdp": 2, "tensor": 2})
  wanted = jax.tree.map(lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), run.params,
                        sharding.parameter_shardings(run.params, mesh))
  step, params = checkpoints.load_params(workdir, wanted)
  assert step == 40
  for path, leaf in jax.tree_util.tree_leaves_with_path(params):
    assert isinstance(leaf.sharding, NamedSharding) and leaf.sharding.mesh == mesh, path
  kernel = params["discriminator"]["layer_00"]["attention"]["query"]["kernel"]
  assert kernel.sharding.spec == PartitionSpec("fsdp", "tensor")
  jax.tree.map(np.testing.assert_array_equal, params, run.params)

  wider = jax.tree.map(lambda x: jax.ShapeDtypeStruct((*x.shape[:-1], x.shape[-1] + 8), x.dtype), run.params)
  bert = make_workdir(tmp_path_factory.getbasetemp(), bert_small, "sentencepiece")
  for folder, asked in ((workdir, wider), (bert, wanted)):
    with pytest.raises(UserError, match="another model") as error:
      checkpoints.load_params(folder, asked)
    assert "asked for (64, 72)" in error.value.got or "missing, asked for (64,)" in error.value.got


def test_doctests():
  assert doctest.testmod(pretraining_heads).failed == 0


def test_the_six_functions(run):
  """What the README shows; they are those of `inference`."""
  import electra_jax

  assert electra_jax.fill_mask(run, ["the [MASK]"], 2) == pretraining_heads.fill_mask(run, ["the [MASK]"], 2)
  assert electra_jax.detect_replaced(run, ["the cat"]) == pretraining_heads.detect_replaced(run, ["the cat"])
  np.testing.assert_array_equal(electra_jax.embed(run, ["the cat"]), pretraining_heads.embed(run, ["the cat"]))
