"""Sources of text and tables: files of every form, TFDS, Hugging Face data sets, the embedded corpus."""
