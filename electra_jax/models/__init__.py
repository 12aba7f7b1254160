"""Pure-functional Flax encoders: transformer -> embeddings, heads -> bert -> electra."""
