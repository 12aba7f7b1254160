"""What a training run is made of: its set-up and its optimizer update."""
