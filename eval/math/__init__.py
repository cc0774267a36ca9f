"""Grading of mathematics: normalisation, equivalence (math-verify), a pool of workers with hard time limits."""
