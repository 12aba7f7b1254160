"""From text to batches: documents -> token ids -> packed examples -> shards -> masked batches; no jax here."""
