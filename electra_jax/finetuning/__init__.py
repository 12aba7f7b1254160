"""Fine-tuning: the encoder it starts from, losses, predictions of several seeds, results and submissions."""
