# One image for every process; docker-compose.yml names the commands. Never built under a Docker engine so far.
FROM python:3.11-slim
ENV PYTHONUNBUFFERED=1 PYTHONPATH=/app PIP_NO_CACHE_DIR=1 MALLOC_ARENA_MAX=2
WORKDIR /app
COPY pyproject.toml constraints.txt README.md ./
COPY smore/__init__.py smore/__init__.py
RUN pip install -c constraints.txt -e '.[examples,node]'
COPY . .
RUN python -m scheduler.policy
RUN useradd --system --create-home smore && mkdir /data && chown smore /data
USER smore
