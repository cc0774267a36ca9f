"""The study on the tiny base: arms and seeds, the held-out measure, the summary."""
