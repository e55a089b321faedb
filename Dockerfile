# One image for every process; docker-compose.yml names the commands.
FROM python:3.11-slim
ENV PYTHONUNBUFFERED=1 PYTHONPATH=/app PIP_NO_CACHE_DIR=1 MALLOC_ARENA_MAX=2
WORKDIR /app
# To the kernel the number is the user. The first number that Debian would give is 999, which the images of Postgres and Valkey have too.
RUN useradd --uid 10001 --create-home smore && mkdir /data && chown smore /data
COPY pyproject.toml constraints.txt ./
COPY client/pyproject.toml client/
# Their code comes below; until then empty files stand for it, so that a change of it does not install everything anew.
RUN mkdir smore client/smore_client \
    && touch README.md client/README.md smore/__init__.py client/smore_client/__init__.py \
    && pip install -c constraints.txt -e ./client -e '.[examples,node]'
COPY . .
# COPY keeps the modes of the checkout, which umask 077 takes from everybody but its owner. The user below cannot write compiled files here.
RUN chmod -R a+rX . && python -m compileall -q .
USER smore
# As this user: numba takes compiled code only from a folder to which it may write, which is this user's home.
RUN python -m scheduler.policy
