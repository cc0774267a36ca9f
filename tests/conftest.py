"""Set before any test imports verl: the CPU platform and engine of this project, nothing from the network."""

import os

os.environ.setdefault("VERL_PLATFORM", "cpu")
os.environ.setdefault("VERL_USE_EXTERNAL_MODULES", "verl_populora.engine.platform_cpu")
os.environ.setdefault("VERL_ENGINE_VENDOR", "populora")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
