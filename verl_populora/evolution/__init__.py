"""Evolution in weight space: exact low-rank algebra, variation operators, plans of births, lineage, diversity."""

from verl_populora.evolution.config import EvolutionConfig, EvolutionUnit
from verl_populora.evolution.diversity import DiversityReport, PairDiversity, diversity
from verl_populora.evolution.hall_of_fame import HallOfFame, Laureate
from verl_populora.evolution.lineage import child_of_each_operator, make_child
from verl_populora.evolution.operators import Operator, SpectralOperator
from verl_populora.evolution.population import Birth, Evolution
from verl_populora.evolution.registry import make_operator, operator_names, register_operator

__all__ = [
    "Birth",
    "DiversityReport",
    "Evolution",
    "EvolutionConfig",
    "EvolutionUnit",
    "HallOfFame",
    "Laureate",
    "Operator",
    "PairDiversity",
    "SpectralOperator",
    "child_of_each_operator",
    "diversity",
    "make_child",
    "make_operator",
    "operator_names",
    "register_operator",
]
