# fedtailor on the processor, with the README's first command as its default.
#
#   docker build -t fedtailor .
#   docker run --rm fedtailor                                     # fedtailor run
#   docker run --rm fedtailor list methods
#   docker run --rm -v "$PWD/runs:/tailor/runs" -v "$PWD/photos:/tailor/photos:ro" fedtailor \
#     run capt data=folder:photos clients=5
#
# It writes to /tailor/runs, as user 1000. Pictures that were encoded are kept in /tailor/cache: mount it to keep them longer.
FROM python:3.11-slim

# A torch without CUDA comes first, as the README says: the other would bring gigabytes of GPU libraries.
WORKDIR /fedtailor
COPY constraints.txt ./
RUN pip install --no-cache-dir -c constraints.txt torch --extra-index-url https://download.pytorch.org/whl/cpu

COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir -c constraints.txt -e .

RUN useradd --uid 1000 --create-home tailor && mkdir -p /tailor/runs /tailor/cache && chown -R tailor /tailor
USER tailor
WORKDIR /tailor
ENV FEDTAILOR_CACHE=/tailor/cache
ENTRYPOINT ["fedtailor"]
CMD ["run"]
