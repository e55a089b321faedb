"""Degradation budgets of trainings: token buckets (kernel.py), their closed loop, what is charged and reserved."""
