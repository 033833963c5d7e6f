"""Models that hear: files of sound to samples, samples to spectrograms, encoders of these."""
