"""LAMB and AdamW as in ALBERT's original code, the learning-rate schedule, and gradient clipping."""

from albert.optimizers.adamw import AdamW as AdamW
from albert.optimizers.lamb import LAMB as LAMB
from albert.optimizers.schedules import WarmupPolynomialDecay as WarmupPolynomialDecay
