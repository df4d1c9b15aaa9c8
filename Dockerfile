# docker build --tag selsync .
# docker run --rm --volume "$PWD/runs:/training/runs" selsync train --config=digits
#
# For GPUs: --build-arg EXTRAS=train,cuda and docker run --gpus=all.
FROM python:3.12-slim

ARG EXTRAS=train
COPY . /source
RUN pip install --no-cache-dir "/source[$EXTRAS]" && rm -r /source

WORKDIR /training
ENTRYPOINT ["selsync"]
CMD ["--help"]
