"""Runs: one Celery worker for each GPU instance, runners below it."""
