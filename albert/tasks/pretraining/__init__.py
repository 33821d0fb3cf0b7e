"""Pretraining as a task: its files, masks, stages, and the filling of masks with a pretrained model."""
