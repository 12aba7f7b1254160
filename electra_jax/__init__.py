"""Pre-training and fine-tuning of text encoders as in the RoBERTa and ELECTRA papers. Read `pretrain.py` first."""

__version__ = "0.1.0"
