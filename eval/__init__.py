"""Ten reasoning benchmarks for a base model, a baseline and every member of a population, in one pass.

Stages, each its own process: ``fetch-data``, ``run`` (generation, vLLM), ``grade`` (math-verify, sandboxed code),
``table`` (statistics and rendering). They meet only in the files of one output directory (``store.py``).
"""
