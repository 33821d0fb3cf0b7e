"""How soon different recipes of pretraining reach a loss: the recipes, their plan, and the pictures."""
