"""How does text become batches? Documents -> token ids -> packed examples -> shards -> masked batches; no jax here."""
