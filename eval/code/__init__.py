"""Grading of programs. Model-written code only ever runs in a confined, disposable process (``runner.py``).

Expected outputs never enter such a process: it sends back values as data (``values.py``), and they are compared here.
"""
