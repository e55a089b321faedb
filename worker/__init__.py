"""The GPU workers: one Celery worker for each GPU instance, which runs functions in runner processes."""
